package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	wants "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/payonce/payonce/examples/scaffold"
)

// node is one server of the cluster, in a process of its own: "NAME FOLDER ROUTES". It ends
// with its standard input.
func node(context.Context, *pgxpool.Pool) error {
	role := append(strings.Fields(scaffold.Role()), "")
	s, err := server.NewServer(&server.Options{
		ServerName: role[0], Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: role[1],
		Cluster: server.ClusterOpts{Name: "shop", Host: "127.0.0.1", Port: server.RANDOM_PORT}, Routes: server.RoutesFromStr(role[2]),
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("the node does not start")
	}
	fmt.Println(s.ClientURL(), "nats://"+s.ClusterAddr().String())
	_, err = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return err
}

// cluster is three nodes and a stream of orders that each of them stores.
type cluster struct {
	folder string
	nodes  map[string]*scaffold.Process
	conn   *nats.Conn
	js     nats.JetStreamContext
}

// start starts the cluster; stop must be called also after an error.
func (c *cluster) start(ctx context.Context) (err error) {
	if c.folder, err = os.MkdirTemp("", "nats"); err != nil {
		return err
	}
	c.nodes = map[string]*scaffold.Process{}
	var urls, routes []string
	for _, name := range []string{"n1", "n2", "n3"} {
		n, err := scaffold.Start(ctx, fmt.Sprintf("%s %s/%[1]s %[3]s", name, c.folder, strings.Join(routes, ",")))
		if err != nil {
			return err
		}
		c.nodes[name] = n
		line, err := n.Line()
		if err != nil {
			return err
		}
		url, route, _ := strings.Cut(line, " ")
		urls, routes = append(urls, url), append(routes, route)
	}
	c.conn, err = nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // a node is killed
	if err == nil {
		c.js, err = c.conn.JetStream()
	}
	if err != nil {
		return err
	}
	config := &nats.StreamConfig{Name: "orders", Subjects: []string{"orders"}, Replicas: len(c.nodes)}
	return retry(ctx, func() error { _, err := c.js.AddStream(config); return err })
}

func (c *cluster) stop() {
	if c.conn != nil {
		c.conn.Close()
	}
	for _, n := range c.nodes {
		_ = n.Stop() // one was killed
	}
	_ = os.RemoveAll(c.folder)
}

// killLeader kills the node that leads the stream.
func (c *cluster) killLeader(ctx context.Context) error {
	return retry(ctx, func() error {
		stream, err := c.js.StreamInfo("orders")
		if err == nil {
			c.nodes[stream.Cluster.Leader].Kill()
		}
		return err
	})
}

// publish publishes a message until the stream has it. If only the acknowledgment is lost,
// it is stored twice.
func (c *cluster) publish(ctx context.Context, id string) error {
	m := nats.NewMsg("orders")
	m.Header.Set(wants.WatermillUUIDHdr, id)
	return retry(ctx, func() error { _, err := c.js.PublishMsg(m); return err })
}

// stored returns how many messages the stream holds.
func (c *cluster) stored(ctx context.Context) (n int64, err error) {
	err = retry(ctx, func() error {
		stream, err := c.js.StreamInfo("orders")
		if err == nil {
			n = int64(stream.State.Msgs) //nolint:gosec // a few dozen
		}
		return err
	})
	return n, err
}

// retry repeats what fails while the cluster elects a leader.
func retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || pause(ctx) != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}
