package scaffold

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// Answer is a shop's answer to an order, or the error in its place.
type Answer struct {
	Status            int
	ContentType, Body string
	Replayed          bool
	Err               error
}

// Post sends an order to a shop once, under a key; empty means none.
func Post(ctx context.Context, shop, key, order string) Answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, shop+"/orders", strings.NewReader(order))
	if err != nil {
		return Answer{Err: err}
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return Answer{Err: err}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	replayed := response.Header.Get("Idempotent-Replayed") == "true"
	return Answer{response.StatusCode, response.Header.Get("Content-Type"), string(body), replayed, err}
}
