//go:build never

// Package deciders names what ./test builds from here, so that go.mod pins it.
package deciders

import (
	_ "github.com/envoyproxy/ratelimit/src/service_cmd"
)
