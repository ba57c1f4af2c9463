// Package sqs is the sink that sends messages to queues of Amazon SQS and what speaks its protocol.
//
// # What is sent
//
// Batches of up to ten messages and 256 KiB. The queue is the one that the topic names, by name or by
// URL, or Config.Queue. The body is the payload if it is text, else its base64; the attributes are
// those of package sink (emitd-id, emitd-generation, …) and the message's headers, of which SQS takes
// ten together: beyond, they are one attribute, the JSON object emitd-headers.
//
// In a FIFO queue (its name ends in .fifo) the message group is the key, or a digest of a key that is
// longer than 128 bytes or not printable ASCII; a message of no key is a group of its own. The
// deduplication id is the message's id: SQS drops repetitions within five minutes. Of a key at most one
// message is in a batch, so that an entry that fails is not overtaken. A standard queue keeps no order
// and drops nothing, whatever we do.
//
// # What an error means
//
//	an entry's sender fault, message too large      permanent
//	an entry's other fault                          another attempt
//	no such queue                                   permanent; Config.Queue: the sink is down
//	no connection, login refused, throttled, 5xx    the sink is down
//	no answer within Config.Timeout                 another attempt
//
// # What is not promised
//
// A fence: SQS knows none, but in a FIFO queue what a deposed relay sends again within five minutes is
// dropped.
package sqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/internal/amazon"
)

// Login is how to reach the service; the zero value takes everything from the environment.
type Login = amazon.Login

// Config of the sink. The zero value sends to the queues that the topics name, as the environment's
// account.
type Config struct {
	Login `yaml:",inline"`
	// Queue for all messages, by name or by URL, instead of each one's topic.
	Queue string `yaml:"queue"`
	// Timeout of one call, with the client's repetitions; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many calls are under way at once in a delivery; default 16.
	Parallel int `yaml:"parallel"`
	// MaxBytes of a batch, and so of a message; default and at most what SQS takes everywhere, 256 KiB,
	// unless the queue is known to take 1 MiB.
	MaxBytes int `yaml:"max_bytes"`
}

// Sink sends messages. It is safe for concurrent use.
type Sink struct {
	cfg    Config
	client *sqs.Client

	mu   sync.Mutex
	urls map[string]string // of queues, by name
}

var _ outbox.Sink = (*Sink)(nil)

// New loads the configuration of AWS. It does not connect, unless credentials are to be fetched.
func New(ctx context.Context, cfg Config) (*Sink, error) {
	switch {
	case cfg.Timeout < 0 || cfg.Parallel < 0:
		return nil, errors.New("sqs: timeout and parallel must not be negative")
	case cfg.MaxBytes < 0 || cfg.MaxBytes > 1<<20:
		return nil, fmt.Errorf("sqs: max_bytes is %d, want 1 to %d", cfg.MaxBytes, 1<<20)
	}
	cfg.Timeout = sink.Default(cfg.Timeout, 30*time.Second)
	if cfg.Parallel == 0 {
		cfg.Parallel = 16
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = amazon.MaxBytes
	}
	login, err := cfg.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	return &Sink{cfg: cfg, client: sqs.NewFromConfig(login), urls: map[string]string{}}, nil
}

// Close does nothing: connections end when they are idle.
func (s *Sink) Close() error { return nil }

// Deliver sends the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	messages := make([]amazon.Message, len(d.Rows))
	for i, row := range d.Rows {
		messages[i] = amazon.NewMessage(d, row, s.cfg.MaxBytes)
	}
	plan := sink.Plan{
		Parallel: s.cfg.Parallel, Rows: amazon.MaxEntries, Bytes: s.cfg.MaxBytes,
		Size:   func(i int) int { return messages[i].Size },
		Target: func(i int) string { return s.target(d.Rows[i]) },
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
		errs := s.send(ctx, d, rows, messages)
		if len(rows) > 1 && len(errs) == 1 && errors.Is(errs[0], outbox.ErrPermanent) {
			errs = make([]error, len(rows)) // the call was refused: find out on whose account
			for n := range rows {
				errs[n] = s.send(ctx, d, rows[n:n+1], messages)[0]
			}
		}
		return errs
	})
}

func (s *Sink) target(row outbox.Row) string {
	if s.cfg.Queue != "" {
		return s.cfg.Queue
	}
	return row.Topic
}

// send sends one batch.
func (s *Sink) send(ctx context.Context, d outbox.Delivery, rows []int, messages []amazon.Message) []error {
	queue := s.target(d.Rows[rows[0]])
	what := fmt.Sprintf("send to %.80q", queue)
	ctx, cancel := sink.Limit(ctx, sink.Deadline{What: "SQS", After: s.cfg.Timeout})
	defer cancel()
	url, err := s.url(ctx, queue)
	if err != nil {
		return []error{amazon.Classify(ctx, what, s.cfg.Queue != "", err)}
	}
	errs := make([]error, len(rows))
	var entries []types.SendMessageBatchRequestEntry
	for n, i := range rows {
		if errs[n] = messages[i].Err; errs[n] == nil {
			entries = append(entries, entry(n, d.Rows[i], messages[i], strings.HasSuffix(url, ".fifo")))
		}
	}
	if len(entries) == 0 {
		return errs
	}
	out, err := s.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: aws.String(url), Entries: entries})
	if err != nil {
		err = amazon.Classify(ctx, what, s.cfg.Queue != "", err)
		if len(entries) == len(rows) {
			return []error{err}
		}
	}
	confirmed := map[string]bool{}
	failed := map[string]error{}
	if err == nil {
		for _, ok := range out.Successful {
			confirmed[aws.ToString(ok.Id)] = true
		}
		for _, f := range out.Failed {
			failed[aws.ToString(f.Id)] = amazon.Entry(what, aws.ToString(f.Code), aws.ToString(f.Message), f.SenderFault)
		}
		err = fmt.Errorf("%s: the answer does not mention the message", what)
	}
	for _, e := range entries {
		n, _ := strconv.Atoi(*e.Id) // we made it
		switch {
		case failed[*e.Id] != nil:
			errs[n] = failed[*e.Id]
		case !confirmed[*e.Id]:
			errs[n] = err
		}
	}
	return errs
}

// isString is the type of all attributes.
var isString = aws.String("String")

func entry(n int, row outbox.Row, m amazon.Message, fifo bool) types.SendMessageBatchRequestEntry {
	e := types.SendMessageBatchRequestEntry{
		Id: aws.String(strconv.Itoa(n)), MessageBody: aws.String(m.Body),
		MessageAttributes: make(map[string]types.MessageAttributeValue, len(m.Attributes)),
	}
	for _, a := range m.Attributes {
		e.MessageAttributes[a.Name] = types.MessageAttributeValue{DataType: isString, StringValue: aws.String(a.Value)}
	}
	if fifo {
		e.MessageGroupId = aws.String(amazon.Group(row))
		e.MessageDeduplicationId = aws.String(row.ID.String())
	}
	return e
}

// url returns the URL of a queue, and asks for it once.
func (s *Sink) url(ctx context.Context, queue string) (string, error) {
	if strings.HasPrefix(queue, "https://") || strings.HasPrefix(queue, "http://") {
		return queue, nil
	}
	s.mu.Lock()
	url := s.urls[queue]
	s.mu.Unlock()
	if url != "" {
		return url, nil
	}
	out, err := s.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(queue)})
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.urls) > 10_000 {
		clear(s.urls) // topics without end: ask again
	}
	s.urls[queue] = aws.ToString(out.QueueUrl)
	return s.urls[queue], nil
}
