fn main() {
    // the block
    assert!(layer().is_ok());
}
