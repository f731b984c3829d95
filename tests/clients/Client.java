// Calls a service through the HTTP proxy of its environment, as any Java program would.

import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

public class Client {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        int requests = Integer.parseInt(arguments[1]);
        URI proxy = URI.create(System.getenv("http_proxy"));
        ProxySelector selector = ProxySelector.of(new InetSocketAddress(proxy.getHost(), proxy.getPort()));
        // The default of HttpClient: each plaintext connection first offers an upgrade to HTTP/2.
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).proxy(selector).build();
        int succeeded = 0;
        for (int i = 0; i < requests; i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/hello/" + i)).build();
            succeeded += check(client.send(request, BodyHandlers.ofString()), "GET /hello/" + i + " ");
        }
        String body = "0123456789abcdef".repeat(16 * 1024);
        List<CompletableFuture<HttpResponse<String>>> responses = new ArrayList<>();
        for (int i = 0; i < requests; i++) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/post/" + i))
                .POST(BodyPublishers.ofString(body)).build();
            responses.add(client.sendAsync(request, BodyHandlers.ofString()));
        }
        for (int i = 0; i < requests; i++) {
            succeeded += check(responses.get(i).get(), "POST /post/" + i + " " + body);
        }
        System.out.println("java client: " + succeeded + " of " + 2 * requests + " as expected");
        Thread.currentThread().join();
    }

    private static int check(HttpResponse<String> response, String body) {
        if (response.statusCode() == 200 && response.body().equals(body)) {
            return 1;
        }
        String start = response.body().substring(0, Math.min(200, response.body().length()));
        System.out.println("unexpected: " + response.statusCode() + " " + start);
        return 0;
    }
}
