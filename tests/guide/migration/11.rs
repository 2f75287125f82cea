fn main() {
    // the block
    assert!(app().is_ok());
}
