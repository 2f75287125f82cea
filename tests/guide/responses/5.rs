fn main() {
    // the block
    while mail.limiter().check("ann@example.com").is_allowed() {}
    let denied = answer("ann@example.com").unwrap_err();
    assert_eq!(denied.code(), tonic::Code::ResourceExhausted);
    assert!(denied.metadata().contains_key("grpc-retry-pushback-ms"));
    assert!(answer("bob@example.com").is_ok());
}
