mod differential;
mod reference;
mod state;
