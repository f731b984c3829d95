package dev.leno.bench;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.netflix.eureka.server.EnableEurekaServer;

/** A Eureka server that is alone and forgets nobody. */
@EnableEurekaServer
@SpringBootApplication
public class Registry {
    public static void main(String[] arguments) {
        SpringApplication.run(Registry.class, arguments);
    }
}
