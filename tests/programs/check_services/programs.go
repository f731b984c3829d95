//go:build never

// Package checkservices imports the programs that ./test builds from here, so that go.mod pins them.
package checkservices

import (
	_ "github.com/envoyproxy/ratelimit/src/service_cmd"
)
