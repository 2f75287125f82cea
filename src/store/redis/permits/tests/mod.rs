mod differential;
mod reference;
