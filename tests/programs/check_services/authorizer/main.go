// Command authorizer is an authorization service with Envoy's protocol: it allows requests with the key, unless
// the body contains "please".
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	kinds "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type authorizer struct {
	auth.UnimplementedAuthorizationServer
}

func header(key, value string, appended bool) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header: &core.HeaderValue{Key: key, Value: value},
		Append: wrapperspb.Bool(appended),
	}
}

func denied(code kinds.StatusCode, body string, headers ...*core.HeaderValueOption) *auth.CheckResponse {
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.PermissionDenied)},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &kinds.HttpStatus{Code: code},
			Headers: headers,
			Body:    body,
		}},
	}
}

// Check returns the identity of the client in a header for the application and the received part of the body in a
// header for the client; without the key it denies the request and names the missing key.
func (authorizer) Check(_ context.Context, request *auth.CheckRequest) (*auth.CheckResponse, error) {
	attributes := request.GetAttributes()
	http := attributes.GetRequest().GetHttp()
	if http.GetHeaders()["x-key"] != "open sesame" {
		body := "no key for " + http.GetMethod() + " " + http.GetPath()
		return denied(kinds.StatusCode_Unauthorized, body, header("www-authenticate", "Key", false)), nil
	}
	if strings.Contains(http.GetBody(), "please") {
		return denied(kinds.StatusCode_Forbidden, "no please"), nil
	}
	receivedBody := fmt.Sprintf("%q %q %d %q", http.GetBody(), http.GetRawBody(), http.GetSize(),
		http.GetHeaders()["x-envoy-auth-partial-body"])
	identity := strings.Join([]string{
		attributes.GetSource().GetPrincipal(),
		attributes.GetDestination().GetPrincipal(),
		attributes.GetContextExtensions()["rule"],
	}, " ")
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.OK)},
		HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
			Headers:         []*core.HeaderValueOption{header("x-attributes", identity, false)},
			HeadersToRemove: []string{"x-key"},
			ResponseHeadersToAdd: []*core.HeaderValueOption{
				header("x-authorized", "yes", false), header("x-received-body", receivedBody, false),
			},
		}},
	}, nil
}

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	auth.RegisterAuthorizationServer(server, authorizer{})
	fmt.Println("listening at", listener.Addr())
	log.Fatal(server.Serve(listener))
}
