package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	admission "k8s.io/api/admission/v1"
)

// Traces of another mesh in a pod: its label, and a container with the name of its sidecars. This container
// carries no connections.
const foreignSidecar = `[
 {"op": "add", "path": "/metadata/labels/osm-proxy-uuid", "value": "00000000-0000-4000-8000-000000000000"},
 {"op": "add", "path": "/spec/containers/-", "value":
  {"name": "envoy", "image": "kc.local/testapp:1", "imagePullPolicy": "Never", "args": ["idle"]}}
]`

// serveWebhook adds that patch to every pod in an admission request.
func serveWebhook(listen, certificate, key string) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		var review admission.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		kind := admission.PatchTypeJSONPatch
		review.Response = &admission.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, Patch: []byte(foreignSidecar), PatchType: &kind,
		}
		review.Request = nil
		w.Header().Set("content-type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}
	fmt.Println("listening on", listen)
	fail(http.ListenAndServeTLS(listen, certificate, key, http.HandlerFunc(answer)))
}
