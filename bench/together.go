package main

import "golang.org/x/sync/errgroup"

// together does a number of things over all connections at once.
func together(count int, do func(n int) error) error {
	g := errgroup.Group{}
	g.SetLimit(httpConnections)
	for n := range count {
		g.Go(func() error { return do(n) })
	}
	return g.Wait()
}
