package dev.leno.bench;

import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.RestController;

/** How many stars readers gave a book. */
@RestController
@SpringBootApplication
public class Ratings {
    /** The ratings of one book, by reader. */
    record Rated(int id, Map<String, Integer> ratings) {}

    @GetMapping("/ratings/{id}")
    Rated ratings(@PathVariable int id) {
        return new Rated(id, Map.of("Laertes", 3, "Eurycleia", 5));
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Ratings.class, arguments);
    }
}
