package scaffold

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// Answer is a shop's answer to an order.
type Answer struct {
	Status            int
	ContentType, Body string
	Replayed          bool
}

// Post sends an order to a shop once, under a key; empty means none.
func Post(ctx context.Context, shop, key, order string) (a Answer, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, shop+"/orders", strings.NewReader(order))
	if err != nil {
		return a, err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	replayed := response.Header.Get("Idempotent-Replayed") == "true"
	return Answer{response.StatusCode, response.Header.Get("Content-Type"), string(body), replayed}, err
}
