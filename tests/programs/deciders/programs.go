//go:build never

// Package deciders imports the programs that ./test builds from here, so that go.mod pins them.
package deciders

import (
	_ "github.com/envoyproxy/ratelimit/src/service_cmd"
)
