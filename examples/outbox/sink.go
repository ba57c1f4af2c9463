package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/nats"
	"github.com/emitd/emitd/outbox/sink/webhook"
)

// closer is a sink with connections to close.
type closer interface {
	outbox.Sink
	io.Closer
}

// sink makes the sink that the flags select.
func (o options) sink(ctx context.Context) (closer, error) {
	switch {
	case o.nats != "":
		return openNATS(ctx, o.nats)
	case o.webhook != "":
		return webhook.New(ctx, webhook.Config{URL: o.webhook})
	}
	return openReceiver(ctx)
}

// openNATS creates or updates the stream. The stream drops repetitions within Duplicates. By
// the markers on emitd.fence.> it also rejects what a replaced relay publishes.
func openNATS(ctx context.Context, url string) (closer, error) {
	conn, err := natsgo.Connect(url)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{"orders", "emitd.fence.>"}, Duplicates: 2 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	return nats.New(ctx, nats.Config{URL: sink.Secret(url), Stream: "ORDERS", Fence: true})
}

// receiver stands for another service. It must tolerate repeated messages, so it remembers the IDs it has
// seen.
type receiver struct {
	mu   sync.Mutex
	seen map[string]bool
}

// ServeHTTP takes one CloudEvent.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var o order
	if err := json.NewDecoder(req.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // permanent: its key waits for an operator
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := req.Header.Get("ce-id")
	if r.seen[id] {
		return // taken before: confirm it again
	}
	r.seen[id] = true
	log.Printf("received %s: %d. order of %s, a %s", req.Header.Get("ce-type"), o.Number, o.Customer, o.Item)
}

// local is a webhook sink together with its receiver.
type local struct {
	*webhook.Sink
	server *http.Server
}

// Close ends both.
func (l local) Close() error { return errors.Join(l.Sink.Close(), l.server.Close()) }

// openReceiver serves a receiver on a free port.
func openReceiver(ctx context.Context) (closer, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: &receiver{seen: map[string]bool{}}, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // ends with Close
	to, err := webhook.New(ctx, webhook.Config{URL: "http://" + listener.Addr().String()})
	if err != nil {
		server.Close()
		return nil, err
	}
	return local{to, server}, nil
}
