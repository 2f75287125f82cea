//! The recipe "Serverless, behind an API gateway".

include!(concat!(env!("OUT_DIR"), "/serverless.rs"));
