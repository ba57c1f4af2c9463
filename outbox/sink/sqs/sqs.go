// Package sqs is the sink that sends messages to queues of Amazon SQS, or anything that speaks its
// protocol.
//
// # What is sent
//
// Messages are sent in batches of up to ten messages and 256 KiB. The topic names the queue, by name or
// by URL, unless Config.Queue is set. The body is the payload if it is text, otherwise its base64. The
// attributes are those of package sink (emitd-id, emitd-generation, …) and the message's headers. SQS
// takes ten attributes: if there would be more, the headers become one attribute, the JSON object
// emitd-headers.
//
// In a FIFO queue (its name ends in .fifo) the message group is the key, or a digest of a key that is
// longer than 128 bytes or not printable ASCII; a message without a key is a group of its own. The
// deduplication ID is the message's ID: SQS drops repetitions within five minutes. A batch has at most
// one message of a key, so that no message overtakes a failed one. A standard queue keeps no order and
// drops no repetitions, whatever the sink does.
//
// # What an error means
//
//	an entry's sender fault, message too large      permanent
//	an entry's other fault                          another attempt
//	no such queue                                   permanent; Config.Queue: the sink is down
//	not allowed to use the queue or its KMS key     another attempt; Config.Queue: the sink is down
//	no connection, login refused, throttled, 5xx    the sink is down
//	no answer within Config.Timeout                 that of a call that hangs
//
// # What is not promised
//
// A fence, because SQS has none. But in a FIFO queue, what a replaced relay sends again within five
// minutes is dropped.
package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// Config configures the sink. With the zero value each message's topic names its queue, and the account
// is that of the environment.
type Config struct {
	// Region is that of the service; default: that of the environment or the profile.
	Region string `yaml:"region"`
	// Endpoint replaces Amazon's, e.g. http://localhost:9324.
	Endpoint string `yaml:"endpoint"`
	// AccessKey and SecretKey replace those of the environment, a profile or the machine's role.
	AccessKey string      `yaml:"access_key"`
	SecretKey sink.Secret `yaml:"secret_key"`
	// Queue receives all messages, by name or by URL, instead of the queue that each topic names.
	Queue string `yaml:"queue"`
	// Timeout bounds one call, including the client's repetitions; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many calls of a delivery may be in flight; default 16.
	Parallel int `yaml:"parallel"`
	// MaxBytes bounds a batch, and so a message; default 256 KiB, which SQS takes everywhere. Set up to 1
	// MiB only if the queue is known to take that.
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

// New loads the configuration of AWS. It does not connect, unless it must fetch credentials.
func New(ctx context.Context, cfg Config) (*Sink, error) {
	switch {
	case cfg.Timeout < 0 || cfg.Parallel < 0:
		return nil, errors.New("sqs: timeout and parallel must not be negative")
	case cfg.MaxBytes < 0 || cfg.MaxBytes > 1<<20:
		return nil, fmt.Errorf("sqs: max_bytes is %d, want 1 to %d", cfg.MaxBytes, 1<<20)
	}
	cfg.Timeout = sink.DurationOr(cfg.Timeout, 30*time.Second)
	if cfg.Parallel == 0 {
		cfg.Parallel = 16
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = amazon.MaxBytes
	}
	login, err := amazon.Login{Region: cfg.Region, Endpoint: cfg.Endpoint, AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey}.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	client := sqs.NewFromConfig(login, func(o *sqs.Options) { o.Protocol = protocol{o.Protocol} })
	return &Sink{cfg: cfg, client: client, urls: map[string]string{}}, nil
}

// Close does nothing: connections close when they are idle.
func (s *Sink) Close() error { return nil }

// Deliver sends the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	messages := make([]amazon.Message, len(d.Rows))
	for i, row := range d.Rows {
		messages[i] = amazon.NewMessage(d, row, s.cfg.MaxBytes)
	}
	b := amazon.Batches{Parallel: s.cfg.Parallel, Bytes: s.cfg.MaxBytes, Target: s.target, Send: func(ctx context.Context, rows []int) []error {
		return s.send(ctx, d, rows, messages)
	}}
	return b.Deliver(ctx, d.Rows, messages)
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
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "SQS", After: s.cfg.Timeout})
	defer cancel()
	url, err := s.url(ctx, queue)
	if err != nil {
		return []error{amazon.Classify(ctx, what, s.cfg.Queue != "", err)}
	}
	errs := make([]error, len(rows))
	entries, text := encode(url, d, rows, messages, errs)
	if len(entries) == 0 {
		return errs
	}
	ctx = context.WithValue(ctx, body{}, text)
	out, err := s.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: aws.String(url), Entries: entries})
	if err != nil {
		err = amazon.Classify(ctx, what, s.cfg.Queue != "", err)
		if len(entries) == len(rows) {
			return []error{err}
		}
	}
	if err == nil {
		recordResults(what, out, errs)
		return errs
	}
	for n := range errs {
		if errs[n] == nil {
			errs[n] = err
		}
	}
	return errs
}

// ids are the IDs of a batch's entries.
var ids = [amazon.MaxEntries]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

// encode writes the messages that can be sent. It returns what the client needs of them: IDs, and bodies
// for their checksums. For the others it records the errors.
func encode(url string, d outbox.Delivery, rows []int, messages []amazon.Message, errs []error) ([]types.SendMessageBatchRequestEntry, []byte) {
	size, attributes := 0, 0
	for _, i := range rows {
		size, attributes = size+messages[i].Size, attributes+len(messages[i].Attributes)
	}
	b := newBatch(url, strings.HasSuffix(url, ".fifo"), size, attributes)
	entries := make([]types.SendMessageBatchRequestEntry, 0, len(rows))
	for n, i := range rows {
		m := &messages[i]
		if errs[n] = m.Err; m.Err == nil {
			b.add(n, d.Rows[i], *m)
			entries = append(entries, types.SendMessageBatchRequestEntry{Id: &ids[n], MessageBody: &m.Body})
		}
	}
	return entries, b.end()
}

// recordResults records the results of the messages that were sent. Messages that the answer does not mention
// have failed.
func recordResults(what string, out *sqs.SendMessageBatchOutput, errs []error) {
	for i := range out.Failed {
		f := &out.Failed[i]
		if n := slices.Index(ids[:len(errs)], aws.ToString(f.Id)); n >= 0 && errs[n] == nil {
			errs[n] = amazon.Entry(what, aws.ToString(f.Code), aws.ToString(f.Message), f.SenderFault)
		}
	}
	var confirmed [amazon.MaxEntries]bool
	for i := range out.Successful {
		if n := slices.Index(ids[:], aws.ToString(out.Successful[i].Id)); n >= 0 {
			confirmed[n] = true
		}
	}
	for n := range errs {
		if errs[n] == nil && !confirmed[n] {
			errs[n] = fmt.Errorf("%s: the answer does not mention the message", what)
		}
	}
}

// url returns the URL of a queue. It asks the service once per queue.
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
		clear(s.urls) // bounds the cache if there are endless topics
	}
	s.urls[queue] = aws.ToString(out.QueueUrl)
	return s.urls[queue], nil
}
