package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// longestProfile is as long as the programs serve one.
const longestProfile = 30 * time.Second

// freeAddress is an address that no program listens on.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a port for profiles: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

// record records CPU profiles of the programs from now on. written returns when all are files.
func (d *deployment) record(ctx context.Context, of *running) (written func() error) {
	seconds := max(1, int(min(d.warm+d.For, longestProfile).Seconds()))
	var all errgroup.Group
	for program, addr := range of.profiles {
		all.Go(func() error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", addr, seconds), http.NoBody)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return fmt.Errorf("profile %s: %w", program, err)
			}
			defer response.Body.Close()
			profile, err := io.ReadAll(response.Body)
			if err != nil {
				return fmt.Errorf("profile %s: %w", program, err)
			}
			return os.WriteFile(filepath.Join(d.Profile, d.fileName()+"-"+program+".pprof"), profile, 0o644) //nolint:gosec // profiles may be read by all
		})
	}
	return all.Wait
}
