package sink_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/emitd/emitd/outbox"
	sinkpkg "github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/rabbitmq"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// rabbit is the only node of this test binary, because it takes seconds to start. Each test has its own
// virtual host.
var rabbit struct {
	once  sync.Once
	node  *rabbitNode
	err   error
	alarm sync.Mutex // held while the node's memory alarm is on
}

// maxRabbitMessage is the largest message that the node takes, in bytes.
const maxRabbitMessage = 1_000_000

const rabbitMissing = "RabbitMQ is missing: make deps, or apt-get install rabbitmq-server"

var errRabbitEnded = errors.New("RabbitMQ ended")

// rabbitNode is a private node with its own folder, ports and cookie. It ends with the tests.
type rabbitNode struct {
	addr, admin string
	env         []string // of its commands
	log         bytes.Buffer
}

// watermark sets the share of the memory from which on the node blocks publishers.
func (n *rabbitNode) watermark(t *testing.T, share string) {
	cmd := exec.Command("/usr/lib/rabbitmq/bin/rabbitmqctl", "set_vm_memory_high_watermark", share)
	cmd.Env = n.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("set the memory's watermark: %v\n%s", err, out)
	}
}

func startRabbit(dir string) (*rabbitNode, error) {
	const program = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := os.Stat(program); err != nil {
		return nil, errors.New(rabbitMissing)
	}
	ports := freePorts(4)
	n := &rabbitNode{addr: fmt.Sprintf("127.0.0.1:%d", ports[0]), admin: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	conf := fmt.Sprintf("listeners.tcp.default = %s\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\nloopback_users = none\ndisk_free_limit.absolute = 1MB\nmax_message_size = %d\n", n.addr, ports[1], maxRabbitMessage)
	for name, text := range map[string]string{"rabbitmq.conf": conf, "plugins": "[rabbitmq_management].\n", ".erlang.cookie": uuid.NewString()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	epmd := fmt.Sprint(ports[3]) // of Erlang's own daemon, which outlives the node unless it is stopped
	cmd := exec.Command(program)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8",
		fmt.Sprintf("RABBITMQ_NODENAME=emitd%d@localhost", ports[0]), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports[2]),
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "rabbitmq"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "mnesia"), "RABBITMQ_LOG_BASE=" + filepath.Join(dir, "log"), "RABBITMQ_LOGS=-",
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(dir, "none"), "ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + epmd,
		"RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"),
	}
	n.env = cmd.Env
	cmd.Stdout, cmd.Stderr = &n.log, &n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = append(stop, func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the process group that was started here
		<-ended
		_ = exec.Command("epmd", "-port", epmd, "-kill").Run()
	})
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			ended <- err
			return nil, fmt.Errorf("%w: %w\n%s", errRabbitEnded, err, n.log.String())
		case <-deadline:
			return nil, errors.New("RabbitMQ does not start within two minutes")
		case <-tick.C:
			if n.call(http.MethodGet, "/api/overview", "") == nil {
				return n, nil
			}
		}
	}
}

// freePorts finds ports that are free at the moment.
func freePorts(n int) (ports []int) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		defer l.Close() // all are closed at the end, so that none is found twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// call calls the management interface.
func (n *rabbitNode) call(method, path, body string) error {
	req, err := http.NewRequest(method, "http://"+n.admin+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.SetBasicAuth("guest", "guest")
	limit := 10 * time.Second // only checks that it answers
	if method == http.MethodPut {
		limit = time.Minute // virtual hosts are created one after the other
	}
	resp, err := (&http.Client{Timeout: limit}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return nil
}

// vhost is a virtual host with a queue named orders.
type vhost struct {
	name, url, target string
	channel           *amqp.Channel
}

func newVhost(t testing.TB) *vhost {
	t.Helper()
	rabbit.once.Do(func() {
		for try := 1; try == 1 || try <= 3 && errors.Is(rabbit.err, errRabbitEnded); try++ { // a port may be taken
			dir, err := os.MkdirTemp("", "emitd-rabbitmq-")
			if err != nil {
				rabbit.err = err
				return
			}
			rabbit.node, rabbit.err = startRabbit(dir)
			stop = append(stop, func() { os.RemoveAll(dir) })
		}
	})
	if rabbit.err != nil {
		t.Fatal(rabbit.err)
	}
	name := uuid.NewString()
	for _, path := range []string{"/api/vhosts/" + name, "/api/permissions/" + name + "/guest"} {
		if err := rabbit.node.call(http.MethodPut, path, `{"configure":".*","write":".*","read":".*"}`); err != nil {
			t.Fatal(err)
		}
	}
	v := &vhost{name: name, target: rabbit.node.addr, url: "amqp://guest:guest@" + rabbit.node.addr + "/" + url.PathEscape(name)}
	conn, err := amqp.Dial(v.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if v.channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	v.queue(t, "orders", nil)
	return v
}

func (v *vhost) queue(t testing.TB, name string, args amqp.Table) {
	t.Helper()
	if _, err := v.channel.QueueDeclare(name, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

func (v *vhost) open(t testing.TB, cfg rabbitmq.Config) *rabbitmq.Sink {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = sinkpkg.Secret(v.url)
	}
	s, err := rabbitmq.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// through returns the URL with the wire's address.
func (v *vhost) through(w *wire) sinkpkg.Secret {
	return sinkpkg.Secret(strings.Replace(v.url, v.target, w.addr(), 1))
}

func (v *vhost) messages(t *testing.T) []amqp.Delivery {
	t.Helper()
	var out []amqp.Delivery
	for {
		m, ok, err := v.channel.Get("orders", false)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		out = append(out, m)
	}
	if len(out) > 0 { // return them to the queue
		if err := v.channel.Nack(out[len(out)-1].DeliveryTag, true, true); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func (v *vhost) received(t *testing.T) []sinktest.Taken {
	t.Helper()
	var out []sinktest.Taken
	for _, m := range v.messages(t) {
		key, _ := m.Headers[sinkpkg.Key].(string)
		out = append(out, sinktest.Taken{ID: m.MessageId, Key: key})
	}
	return out
}

func TestRabbitMQ(t *testing.T) {
	t.Parallel()
	sinktest.Suite{New: func(t *testing.T) *sinktest.Harness {
		v := newVhost(t)
		v.queue(t, "full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		if err := v.channel.PublishWithContext(t.Context(), "", "full", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		w := newWire(t, v.target)
		a := &altered{Sink: v.open(t, rabbitmq.Config{URL: v.through(w)})}
		return &sinktest.Harness{Sink: a, Received: v.received, Secrets: []string{"guest"}, Fail: func(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
			switch f {
			case sinktest.Refuse:
				a.to("nowhere", ids)
			case sinktest.Falter:
				a.to("full", ids)
			case sinktest.Hang: // the whole connection: a broker treats all messages alike
				w.hold(ids != nil)
			case sinktest.Down:
				w.cut()
			}
		}}
	}}.Run(t)
}

// TestRabbitMQPipeline runs the suite with several messages of a key in flight. Only where one of them is refused
// alone may those behind it come too early; they come again behind it.
func TestRabbitMQPipeline(t *testing.T) {
	t.Parallel()
	sinktest.Suite{Unsupported: []sinktest.Fault{sinktest.Refuse, sinktest.Falter}, New: func(t *testing.T) *sinktest.Harness {
		v := newVhost(t)
		w := newWire(t, v.target)
		s := v.open(t, rabbitmq.Config{URL: v.through(w), Pipeline: true})
		return &sinktest.Harness{Sink: s, Received: v.received, Secrets: []string{"guest"}, Fail: func(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
			if f == sinktest.Down {
				w.cut()
			} else {
				w.hold(ids != nil)
			}
		}}
	}}.Run(t)

	v := newVhost(t)
	v.queue(t, "full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	must(t, v.channel.PublishWithContext(t.Context(), "", "full", false, false, amqp.Publishing{}))
	a := &altered{Sink: v.open(t, rabbitmq.Config{Pipeline: true})}
	rows := sinktest.Rows("orders", 40, 4)
	a.to("full", []uuid.UUID{rows[12].ID})
	errs := deliver(t, a, "0-63", 5, rows)
	var rest []outbox.Row
	for i, err := range errs {
		behind := rows[i].Key == rows[12].Key && i > 12
		if skipped := errors.Is(err, outbox.ErrSkipped); behind != skipped || (err == nil) == (behind || i == 12) {
			t.Errorf("row %d: %v", i, err)
		}
		if err != nil {
			rest = append(rest, rows[i])
		}
	}
	a.set(nil, nil)
	all(t, deliver(t, a, "0-63", 5, rest), nil)
	last := map[string]int{}
	for place, m := range v.received(t) {
		last[m.ID] = place
	}
	for i := 1; i < len(rest); i++ {
		if last[rest[i].ID.String()] < last[rest[i-1].ID.String()] {
			t.Errorf("the last arrivals of %s are not in order", rest[i].Key)
		}
	}
}

func TestRabbitMQMessage(t *testing.T) {
	t.Parallel()
	v := newVhost(t)
	if err := v.channel.ExchangeDeclare("events", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := v.channel.QueueBind("orders", "shop.order.placed", "events", false, nil); err != nil {
		t.Fatal(err)
	}
	s := v.open(t, rabbitmq.Config{Exchange: "events", RoutingKey: "{topic}.{type}"})
	row := sinktest.Rows("shop", 1, 1)[0]
	row.TraceParent = "00-a-b-01"
	all(t, deliver(t, s, "0-63", 5, []outbox.Row{row}), nil)
	m := v.messages(t)[0]
	if m.MessageId != row.ID.String() || m.Type != "order.placed" || m.DeliveryMode != amqp.Persistent || m.ContentType != "application/json" ||
		string(m.Body) != `{"n":0}` || !m.Timestamp.Equal(row.CreatedAt) || m.RoutingKey != "shop.order.placed" {
		t.Errorf("%+v", m)
	}
	for name, want := range map[string]string{"emitd-key": "key-0", "emitd-topic": "shop", "emitd-generation": "5", "tenant": "acme", "traceparent": "00-a-b-01"} {
		if m.Headers[name] != want {
			t.Errorf("%s: %v, want %s", name, m.Headers[name], want)
		}
	}
}

func TestRabbitMQErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		cfg     func(*vhost, *rabbitmq.Config)
		row     func(*outbox.Row)
		kind    error
		message string
	}{
		{name: "no queue", row: func(r *outbox.Row) { r.Topic = "nowhere" }, kind: outbox.ErrMissing, message: "312 NO_ROUTE"},
		{name: "no queue, and none needed", cfg: func(_ *vhost, c *rabbitmq.Config) { c.Unroutable = true }, row: func(r *outbox.Row) { r.Topic = "nowhere" }},
		{name: "no exchange", cfg: func(_ *vhost, c *rabbitmq.Config) { c.Exchange = "nowhere" }, kind: outbox.ErrSinkDown, message: "NOT_FOUND - no exchange 'nowhere'"},
		{name: "routing key too long", cfg: func(_ *vhost, c *rabbitmq.Config) { c.RoutingKey = "{topic}{type}{key}" }, row: func(r *outbox.Row) { r.Key = strings.Repeat("k", 300) }, kind: outbox.ErrPermanent, message: "limit is 255"},
		{name: "wrong password", cfg: func(v *vhost, c *rabbitmq.Config) {
			c.URL = sinkpkg.Secret(strings.Replace(v.url, "guest:guest", "guest:hunter2", 1))
		}, kind: outbox.ErrSinkDown, message: "username or password not allowed"},
		{name: "no vhost", cfg: func(v *vhost, c *rabbitmq.Config) {
			c.URL = sinkpkg.Secret("amqp://guest:guest@" + v.target + "/nowhere")
		}, kind: outbox.ErrSinkDown, message: "connect to amqp://127.0.0.1"},
		{name: "nobody there", cfg: func(_ *vhost, c *rabbitmq.Config) { c.URL = "amqp://guest:hunter2@127.0.0.1:1" }, kind: outbox.ErrSinkDown, message: "refused"},
		{name: "no TLS there", cfg: func(v *vhost, c *rabbitmq.Config) { c.URL = sinkpkg.Secret("amqps://guest:hunter2@" + v.target) }, kind: outbox.ErrSinkDown, message: "connect to amqps://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := newVhost(t)
			var cfg rabbitmq.Config
			if c.cfg != nil {
				c.cfg(v, &cfg)
			}
			row := sinktest.Rows("orders", 1, 1)[0]
			if c.row != nil {
				c.row(&row)
			}
			err := deliver(t, v.open(t, cfg), "0-63", 5, []outbox.Row{row})[0]
			if c.kind == nil && err != nil || c.kind != nil && (!errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("%v, want %v with %s", err, c.kind, c.message)
			}
		})
	}
}

// TestRabbitMQReconnects checks that a connection which breaks in the middle loses nothing and is made
// again.
func TestRabbitMQReconnects(t *testing.T) {
	t.Parallel()
	v := newVhost(t)
	w := newWire(t, v.target)
	s := v.open(t, rabbitmq.Config{URL: v.through(w)})
	rows := sinktest.Rows("orders", 200, 7)
	all(t, deliver(t, s, "0-63", 5, rows[:20]), nil)
	w.hold(true)
	broken := make(chan []error, 1)
	go func() { broken <- deliver(t, s, "0-63", 5, rows[20:]) }()
	w.drop()
	w.hold(false)
	rest := rows[20:20]
	for i, err := range <-broken {
		if errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("given up over a broken connection: %v", err)
		}
		if err != nil {
			rest = append(rest, rows[20+i])
		}
	}
	eventually(t, "the rest is delivered", func() bool {
		for _, err := range deliver(t, s, "0-63", 5, rest) {
			if err != nil {
				return false
			}
		}
		return true
	})
	seen := map[string]bool{}
	for _, m := range v.received(t) {
		seen[m.ID] = true
	}
	if len(seen) != len(rows) {
		t.Errorf("%d messages, want %d", len(seen), len(rows))
	}
}

// TestRabbitMQSilentPeer checks that a peer which accepts the connection and sends nothing delays a
// delivery only for its timeout.
func TestRabbitMQSilentPeer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := rabbitmq.New(t.Context(), rabbitmq.Config{URL: sinkpkg.Secret("amqp://guest:hunter2@" + l.Addr().String()), Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all(t, deliver(t, s, "0-63", 5, sinktest.Rows("orders", 3, 1)), outbox.ErrSinkDown)
}

func TestRabbitMQConfig(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]rabbitmq.Config{
		"url must be":          {URL: "http://u:hunter2@x"},
		"must not be negative": {URL: "amqp://x", Timeout: -1},
		"read tls.ca":          {URL: "amqps://x", TLS: sinkpkg.TLS{CA: "/does/not/exist"}},
	} {
		if _, err := rabbitmq.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}
