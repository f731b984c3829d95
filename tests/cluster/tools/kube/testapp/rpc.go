package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	health_v1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// serveRPC runs a server that reports SERVING at /grpc.health.v1.Health/Check.
func serveRPC(listen string, secure bool) {
	var options []grpc.ServerOption
	if secure {
		options = append(options, grpc.Creds(credentials.NewTLS(selfSigned())))
	}
	server := grpc.NewServer(options...)
	health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", listen)
	fail(err)
	fmt.Println("listening on", listen)
	fail(server.Serve(listener))
}

// call makes one call of any method, prints the name of the status and exits with its number.
func call(address, method string, secure bool) {
	trust := insecure.NewCredentials()
	if secure {
		// The mesh authenticates the server; this checks only that the application's own TLS passes through.
		trust = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(trust))
	fail(err)
	defer connection.Close()
	within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer := &health_v1.HealthCheckResponse{}
	err = connection.Invoke(within, method, &health_v1.HealthCheckRequest{}, answer)
	fmt.Println(status.Code(err), answer.Status, err)
	os.Exit(int(status.Code(err)))
}

// selfSigned returns a server certificate without a trusted issuer.
func selfSigned() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "testapp"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fail(err)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}}
}
