//go:build tools

// Package tools pins Helm; helm.sh builds helm.sh/helm/v3/cmd/helm.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
