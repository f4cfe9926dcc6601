package e2e_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/fleet"
)

// TestHealth: what operators ask needs no key, and tells a program that lives
// from one that can serve.
func TestHealth(t *testing.T) {
	t.Parallel()
	long(t)

	t.Run("programs with all they need are ready", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 1, workers: 1})
		for _, p := range []*fleet.Process{w.apis[0], w.workers[0]} {
			mustAnswer(t, p, "/healthz", http.StatusOK)
			mustAnswer(t, p, "/readyz", http.StatusOK)
		}
	})
	t.Run("an api whose database has no tables lives and is not ready", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), startPatience)
		defer cancel()
		// Its role is the server's, and there once any database of it is migrated.
		other := map[string]string{"DATABASE_URL": sharedServer(t).database(t, "other")}
		if _, err := fleet.Run(ctx, other, binaries(t).Payonce, "migrate"); err != nil {
			t.Fatal(err)
		}
		p, err := fleet.Start(ctx, fleet.Program{
			Name: "api", Path: binaries(t).API, Log: t.TempDir(),
			Env: map[string]string{"DATABASE_URL": sharedServer(t).database(t, "health")},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(t, p) })
		mustAnswer(t, p, "/healthz", http.StatusOK)
		mustAnswer(t, p, "/readyz", http.StatusServiceUnavailable)
	})
}

func mustAnswer(t *testing.T, p *fleet.Process, path string, status int) {
	t.Helper()
	c := newClient([]string{p.URL()}, "")
	c.merchant = p.Name() == "api"
	got, err := c.do(t.Context(), request{method: http.MethodGet, path: path, header: http.Header{"Authorization": nil}})
	if err != nil || got.Status != status {
		t.Errorf("%s of %s answers %d %s, %v, want %d", path, p.Name(), got.Status, got.Body, err, status)
	}
}
