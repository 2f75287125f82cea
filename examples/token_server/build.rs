//! Generates the types and the service of Envoy's protocol from the files in `proto`, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    tonic_prost_build::configure().disable_comments(["."]).include_file("protocol.rs").compile_fds(files)?;
    Ok(())
}
