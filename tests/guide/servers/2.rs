// the block

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));
    // each on a connection of its own
    for number in 1.. {
        let mut client = tokio::net::TcpStream::connect(address).await?;
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut response = String::new();
        client.read_to_string(&mut response).await?;
        if number > 20 && response.starts_with("HTTP/1.1 429 ") {
            break;
        }
        assert!(response.starts_with("HTTP/1.1 200 "), "{number}: {response}");
    }
    Ok(())
}
