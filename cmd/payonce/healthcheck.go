package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

type healthcheckCmd struct {
	URL string `arg:"" help:"What to ask, for example http://127.0.0.1:8080/readyz."`
}

const healthcheckTimeout = 2 * time.Second

// Run is for images without a shell.
func (h healthcheckCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	if err := response.Body.Close(); err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: %s answered %s", h.URL, response.Status)
	}
	return nil
}
