//go:build never

// Package programs imports the programs that ./test builds from here, so that go.mod pins their dependencies.
// grpc 1.64 is the last version that Go 1.19 builds.
package programs

import (
	_ "github.com/summerwind/h2spec/cmd/h2spec"
	_ "google.golang.org/grpc/interop/client"
	_ "google.golang.org/grpc/interop/server"
)
