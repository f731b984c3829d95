package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// The shop of OSM's demonstration: clients buy or steal books from a store; a warehouse restocks it and stores its
// books in a database with a protocol in which the server speaks first.
//
//	testapp bookstore buyer     -name bookbuyer -store HOST:PORT   buys books in a loop
//	testapp bookstore store     -name bookstore-v1 -warehouse HOST:PORT
//	testapp bookstore warehouse -database HOST:PORT
//
// Buyers print a line for each attempt: the result and the seller.
func bookstore(arguments []string) {
	if len(arguments) < 1 {
		fail(fmt.Errorf("usage: testapp bookstore buyer|store|warehouse"))
	}
	flags := flag.NewFlagSet("bookstore", flag.ExitOnError)
	name := flags.String("name", "", "")
	store := flags.String("store", "", "")
	warehouse := flags.String("warehouse", "", "")
	database := flags.String("database", "", "")
	fail(flags.Parse(arguments[1:]))
	switch arguments[0] {
	case "buyer":
		buy(*name, *store)
	case "store":
		serveBooks(map[string]http.HandlerFunc{
			"GET /books-bought": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, *name) },
			"GET /buy-a-book/new": func(w http.ResponseWriter, _ *http.Request) {
				answer, err := client.Post("http://"+*warehouse+"/restock-books", "application/json", nil)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
				answer.Body.Close()
				w.WriteHeader(answer.StatusCode)
				fmt.Fprintln(w, *name)
			},
		})
	case "warehouse":
		serveBooks(map[string]http.HandlerFunc{
			"POST /restock-books": func(w http.ResponseWriter, _ *http.Request) {
				if err := query(*database); err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
				}
			},
		})
	default:
		fail(fmt.Errorf("%s is no part of the shop", arguments[0]))
	}
}

var client = &http.Client{Timeout: 5 * time.Second}

func serveBooks(paths map[string]http.HandlerFunc) {
	mux := http.NewServeMux()
	for path, answer := range paths {
		mux.HandleFunc(path, answer)
	}
	fmt.Println("listening on :14001")
	fail(http.ListenAndServe(":14001", mux))
}

// buy does the work of the demonstration's buyers, with the headers that its routes match.
func buy(name, store string) {
	for ; ; time.Sleep(200 * time.Millisecond) {
		for _, path := range []string{"/books-bought", "/buy-a-book/new"} {
			request, err := http.NewRequest(http.MethodGet, "http://"+store+path, nil)
			fail(err)
			request.Header.Set("client-app", name)
			answer, err := client.Do(request)
			if err != nil {
				fmt.Printf("%s failed %v\n", path, err)
				continue
			}
			seller, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
			answer.Body.Close()
			fmt.Printf("%s %d %s\n", path, answer.StatusCode, firstLine(seller))
		}
	}
}

// query sends one query to a database, which sends a greeting first.
func query(database string) error {
	connection, err := net.DialTimeout("tcp", database, 5*time.Second)
	if err != nil {
		return err
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
	lines := bufio.NewReader(connection)
	if _, err = lines.ReadString('\n'); err != nil {
		return err
	}
	if _, err = fmt.Fprintln(connection, "restock"); err != nil {
		return err
	}
	_, err = lines.ReadString('\n')
	return err
}

func firstLine(body []byte) string {
	line, _, _ := strings.Cut(string(body), "\n")
	return line
}
