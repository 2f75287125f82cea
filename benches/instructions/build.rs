//! Sets what `src/sys/random.rs` looks for: the hash seeds are the same in each run.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=tower_throttle_fixed_seeds");
}
