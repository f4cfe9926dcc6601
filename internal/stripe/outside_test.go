package stripe_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

// outside is a sandbox and a client of it.
type outside struct {
	*stripe.Client
	t    *testing.T
	base string
}

func newOutside(t *testing.T) outside {
	t.Helper()
	database := testdb.Empty(t)
	if err := sandbox.Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	sb, err := sandbox.New(pool, sandbox.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(sb)
	t.Cleanup(srv.Close)
	t.Cleanup(sb.Drain)
	return outside{newClient(t, srv.URL, 0), t, srv.URL}
}

// created makes an unconfirmed intent of charge ch_1.
func (o outside) created(method string) stripe.Intent {
	o.t.Helper()
	in, err := o.CreateIntent(o.t.Context(), "create", createParams(method))
	if err != nil {
		o.t.Fatal(err)
	}
	return in
}

type books struct {
	Captures []struct {
		Reference string `json:"reference"`
		Amount    int64  `json:"amount"`
	} `json:"captures"`
	Refunds []struct {
		Reference string `json:"reference"`
		Amount    int64  `json:"amount"`
	} `json:"refunds"`
	Requests int `json:"requests"`
}

func (o outside) books() books {
	o.t.Helper()
	r, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, o.base+"/books", http.NoBody)
	if err != nil {
		o.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		o.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var b books
	if err := json.NewDecoder(res.Body).Decode(&b); err != nil {
		o.t.Fatal(err)
	}
	return b
}
