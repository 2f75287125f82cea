/// Returns how many of `number` jobs are not done after 1.2 s.
async fn run(number: usize) -> usize {
    let serve = async |sender: &mpsc::Sender<Job>| {
        for _ in 0..number {
            sender.send(Job { tenant: 1 }).await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    };
    // the block
    assert!(sender.is_closed());
    open.len()
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        (run(6).await, run(2).await, run(0).await)
    });
    assert_eq!(ended.await.expect("a worker without a job ends, too"), (3, 0, 0));
}
