mod limiter;
mod processes;
