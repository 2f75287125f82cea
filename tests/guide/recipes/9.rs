fn main() -> Result<(), tower_throttle::error::ConfigError> {
    // the block
    let addresses = ["203.0.113.7", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"];
    let [v4, v6, neighbour, other] = addresses.map(|text| text.parse::<IpAddr>().unwrap());
    [v4, v6].map(|address| block(&by_hand, address).unwrap());
    let blocked = [v4, v6, neighbour, other].map(|address| by_hand.contains(address));
    assert_eq!(blocked, [true, true, true, false]);
    [v4, neighbour].map(|address| lift(&by_hand, address).unwrap());
    assert_eq!([v4, v6, neighbour].map(|address| by_hand.contains(address)), [false; 3]);
    assert!(always.contains(v4));
    Ok(())
}
