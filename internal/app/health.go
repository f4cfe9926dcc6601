package app

import (
	"fmt"
	"net/http"
	"time"
)

// Health serves /healthz (the process lives), /readyz (it can do its work, as ready
// has it) and metrics at /metrics.
func Health(ready *Readiness, metrics http.Handler) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		switch why, err := ready.Ask(r.Context()); {
		case err != nil:
			status(w, http.StatusServiceUnavailable, "the database does not answer")
		case why != "":
			status(w, http.StatusServiceUnavailable, why)
		default:
			status(w, http.StatusOK, "ready")
		}
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second}
}

func status(w http.ResponseWriter, code int, what string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "{\"status\":%q}\n", what) // a client that is gone cannot be told
}
