//! Sets what `src/sys` looks for: the locks and atomics are those of shuttle, and the hash seeds
//! are the same in each run.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=tower_throttle_shuttle");
    println!("cargo::rustc-cfg=tower_throttle_fixed_seeds");
}
