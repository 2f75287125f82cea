mod differential;
mod reference;
mod runtimes;
mod state;
