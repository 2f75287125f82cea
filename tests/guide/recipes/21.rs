fn main() -> Result<(), tower_throttle::error::QuotaError> {
    // the block
    let address = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(denials(&calls, "20/min burst 2".parse()?), HashMap::from([(address, 1)]));
    assert_eq!(denials(&calls, "5/min burst 1".parse()?), HashMap::from([(address, 3)]));
    Ok(())
}
