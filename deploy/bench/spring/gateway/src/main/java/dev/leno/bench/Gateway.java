package dev.leno.bench;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.cloud.gateway.route.RouteLocator;
import org.springframework.cloud.gateway.route.builder.RouteLocatorBuilder;
import org.springframework.context.annotation.Bean;

/** Passes /ratings/ on to an instance that the registry names. */
@SpringBootApplication
public class Gateway {
    /** The sidecar knows the service by the name that is asked for, not by the address in the registry. */
    @Bean
    RouteLocator routes(RouteLocatorBuilder builder, @Value("${ratings.host}") String host) {
        return builder.routes()
            .route(route -> route.path("/ratings/**")
                .filters(filters -> filters.setHostHeader(host))
                .uri("lb://ratings"))
            .build();
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Gateway.class, arguments);
    }
}
