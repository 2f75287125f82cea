#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let second = Duration::from_secs(1);
    let begin = tokio::time::Instant::now();
    let mail_jobs = tokio::spawn(async move {
        for _ in 0..80 {
            mail_sender.send(Job(second)).await.unwrap();
        }
    });
    tokio::time::sleep(second / 2).await;
    for _ in 0..2 {
        export_sender.send(Job(second)).await.unwrap();
    }
    drop(export_sender);
    exports.await.unwrap();
    // at once, although mails wait
    assert_eq!(begin.elapsed().as_millis() / 10, 150);
    mail_jobs.await.unwrap();
    mails.await.unwrap();
    assert_eq!(begin.elapsed().as_millis() / 10, 1_000);
}
