// Calls a service through the HTTP proxy of its environment, as any Go program would.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

func main() {
	url := os.Args[1]
	requests, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	var succeeded atomic.Int64
	for i := 0; i < requests; i++ {
		path := fmt.Sprintf("/hello/%d", i)
		check(&succeeded, "GET "+path+" ")(http.Get(url + path))
	}
	body := strings.Repeat("0123456789abcdef", 16*1024)
	var posts sync.WaitGroup
	for i := 0; i < requests; i++ {
		posts.Add(1)
		go func() {
			defer posts.Done()
			path := fmt.Sprintf("/post/%d", i)
			// Half of the bodies have no declared length.
			var reader io.Reader = strings.NewReader(body)
			if i%2 == 0 {
				reader = io.MultiReader(reader)
			}
			check(&succeeded, "POST "+path+" "+body)(http.Post(url+path, "text/plain", reader))
		}()
	}
	posts.Wait()
	fmt.Printf("go client: %d of %d as expected\n", succeeded.Load(), 2*requests)
	select {}
}

func check(succeeded *atomic.Int64, expected string) func(*http.Response, error) {
	return func(response *http.Response, err error) {
		if err != nil {
			fmt.Println("unexpected:", err)
			return
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != 200 || string(body) != expected {
			fmt.Printf("unexpected: %v %d %.200s\n", err, response.StatusCode, body)
			return
		}
		succeeded.Add(1)
	}
}
