fn main() -> Result<(), Box<dyn std::error::Error>> {
    // the block
    drop(app);
    Ok(())
}
