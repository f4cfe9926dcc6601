package main

import (
	"context"
	"os"

	"github.com/google/uuid"
)

// engine measures one carrier of the engine's work, in a process of its own.
func engine(by string, workers int) func(context.Context, *stage, setting) (Sample, error) {
	return func(ctx context.Context, s *stage, set setting) (Sample, error) {
		url, err := s.database(ctx, set.Base)
		if err != nil {
			return Sample{}, err
		}
		if err := execute(ctx, url, createWork); err != nil {
			return Sample{}, err
		}
		o, err := openOutside(nil)
		if err != nil {
			return Sample{}, err
		}
		defer func() { _ = o.close() }() // nobody calls any more
		total := 0
		sample, err := counting(ctx, url, func() (window, error) {
			w, err := carried(ctx, order{
				By: by, Database: url, Postmaster: s.server.postmaster, Outside: o.url + "/post",
				Workers: workers, InFlight: set.InFlight, Program: s.carriers(set.Base), Warm: s.sizes.warm, Measured: s.sizes.measured,
			})
			total = w.Total
			return w, err
		})
		if err != nil {
			return Sample{}, err
		}
		if err := s.tellStatements(ctx, url); err != nil {
			return Sample{}, err
		}
		return sample, checkWork(ctx, url, o, total)
	}
}

// senders of the engine accept in process, each one charge after the other.
const engineSenders = 64

// pump drives the engine's work: accept commits one charge, and whoever carries it
// ends it in the flow.
func pump(ctx context.Context, o order, f *flow, accept func(ctx context.Context, id string) error) (window, error) {
	w, err := f.drive(ctx, load{
		senders: engineSenders, warm: o.Warm, measured: o.Measured,
		next: ids(), send: accept, use: users(o.Postmaster, os.Getpid()),
	})
	if err != nil {
		return w, err
	}
	w.Total = f.ended
	return w, f.check()
}

// ids are in the order of time, as real ones are.
func ids() func() string {
	return func() string { return uuid.Must(uuid.NewV7()).String() }
}
