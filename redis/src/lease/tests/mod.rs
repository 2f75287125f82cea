mod differential;
mod limiter;
mod processes;
