//! Instances: the proxy of a workload that has joined again, and two proxies of one workload.

use super::*;

#[test]
fn a_new_join_ends_the_stream_of_the_former_instance_and_rejects_it() {
    run(async {
        let shop = Shop::open().await;
        let former = shop.join("client-1").await;
        let mut stream = Proxy::connect(&shop.control, &former, &[], &[]).await;
        stream.wait_for_update(|_| true).await;
        let new = shop.join("client-1").await;
        let end_reason = stream.wait_until_ended().await.to_string();
        assert!(end_reason.contains("shop/client-1 was replaced"), "{end_reason}");
        let end_reason = Proxy::connect(&shop.control, &former, &[], &[])
            .await
            .wait_until_ended()
            .await
            .to_string();
        assert!(end_reason.contains("was replaced"), "{end_reason}");
        let mut stream = Proxy::connect(&shop.control, &new, &[], &[]).await;
        stream.wait_for_update(|_| true).await;
        new.renew_certificate(&stream).await;
    });
}

#[test]
fn the_first_of_two_proxies_of_a_workload_keeps_its_stream() {
    run(async {
        let shop = Shop::open().await;
        let identity = shop.join("client-1").await;
        let connect =
            async |process| Proxy::connect_as_process(&shop.control, &identity, process).await;
        let mut first = connect(1).await;
        first.wait_for_update(|_| true).await;
        let mut second = connect(2).await;
        assert!(first.wait_until_ended().await.to_string().contains("newer stream"));
        second.wait_for_update(|_| true).await;
        // The first process runs too, and reconnects.
        let mut first = connect(1).await;
        assert!(second.wait_until_ended().await.to_string().contains("newer stream"));
        first.wait_for_update(|_| true).await;
        for process in [2, 3] {
            let rejection = connect(process).await.wait_until_ended().await.to_string();
            assert!(rejection.contains("another proxy of workload shop/client-1"), "{rejection}");
        }
        // The first process may replace its own stream.
        let mut replacement = connect(1).await;
        replacement.wait_for_update(|_| true).await;
    });
}
