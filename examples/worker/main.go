// Worker submits jobs to a queue and works them off, with a typed handler, retries by policy, and a clean
// end on Ctrl-C. It needs a node, such as emitd dev:
//
//	go run ./examples/worker 127.0.0.1:7070 .emitd/token
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/worker"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: worker host:port of a node, file with its token")
	}
	token, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = connect(ctx, client.Config{Addresses: []string{os.Args[1]}, Token: strings.TrimSpace(string(token))})
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func connect(ctx context.Context, to client.Config) error {
	c, err := client.New(to)
	if err != nil {
		return err
	}
	defer c.Close()
	return run(ctx, c)
}

// mail is the payload of a job.
type mail struct {
	To string `json:"to"`
}

func run(ctx context.Context, q queue.Service) error {
	if err := submit(ctx, q, "ada", "bob", ""); err != nil {
		return err
	}
	w, err := worker.New(q, worker.Config{Concurrency: 20, Hooks: worker.Hooks{
		OnFailed: func(j queue.Info, err error, next queue.State) { log.Printf("%s: %v; now %s", j.ID, err, next) },
	}})
	if err != nil {
		return err
	}
	worker.Handle(w, "email:send", func(ctx context.Context, j worker.Job[mail]) error {
		if j.Args.To == "" {
			return worker.Permanent(errors.New("nobody to send to")) // dead at once, with this cause
		}
		fmt.Println("sent to", j.Args.To) // ctx ends if the claim is lost meanwhile
		return nil
	})
	return w.Run(ctx) // nil after a clean drain because ctx ended
}

// submit submits a job for each name; the key deduplicates repetitions.
func submit(ctx context.Context, q queue.Producer, to ...string) error {
	var jobs []queue.Job
	for _, name := range to {
		payload, err := json.Marshal(mail{name})
		if err != nil {
			return err
		}
		jobs = append(jobs, queue.Job{Type: "email:send", Key: "welcome/" + name, Payload: payload})
	}
	_, err := q.Enqueue(ctx, queue.DefaultQueue, jobs)
	return err
}
