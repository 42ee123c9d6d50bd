package peer

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// namespaces is a receiver and senders in network namespaces of their own, with a link of
// 100 Mbit/s between it and each sender. Nothing leaves them.
type namespaces struct {
	tb       testing.TB
	receiver string // the namespace
	senders  []string
	copied   disk.Copy
	sources  []Source
}

// newNamespaces makes one with so many senders of an image of so many bytes.
func newNamespaces(tb testing.TB, senders int, size int64) *namespaces {
	tb.Helper()
	need.Root(tb, "make network namespaces")
	need.Programs(tb, "ip", "tc")
	p := &namespaces{tb: tb, receiver: fmt.Sprintf("bim%d", os.Getpid())}
	p.add(p.receiver)
	for i := range senders {
		name := fmt.Sprintf("%s-%d", p.receiver, i)
		p.add(name)
		p.senders = append(p.senders, name)
		p.link(i)
		d := newDisk(tb)
		p.copied = fillDisk(tb, d, size, io.LimitReader(rand.NewChaCha8([32]byte{5}), size))
		s := startSender(tb, fmt.Sprintf("node%d", i), d, fmt.Sprintf("10.77.%d.2:8000", i), execIn(name)...)
		p.sources = append(p.sources, s.source)
	}
	return p
}

func execIn(namespace string) []string { return []string{"ip", "netns", "exec", namespace} }

func (p *namespaces) add(name string) {
	p.run("ip", "netns", "add", name)
	p.tb.Cleanup(func() { p.run("ip", "netns", "del", name) })
	p.run("ip", "-n", name, "link", "set", "lo", "up")
}

// link joins sender i and the receiver.
func (p *namespaces) link(i int) {
	sender, ours := p.senders[i], fmt.Sprintf("peer%d", i)
	p.run("ip", "link", "add", "name", "up0", "netns", sender, "type", "veth", "peer", "name", ours, "netns", p.receiver)
	p.run("ip", "-n", sender, "addr", "add", fmt.Sprintf("10.77.%d.2/24", i), "dev", "up0")
	p.run("ip", "-n", p.receiver, "addr", "add", fmt.Sprintf("10.77.%d.1/24", i), "dev", ours)
	p.run("ip", "-n", sender, "link", "set", "up0", "up")
	p.run("ip", "-n", p.receiver, "link", "set", ours, "up")
	p.run("tc", "-n", sender, "qdisc", "add", "dev", "up0", "root", "tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms")
}

func (p *namespaces) run(line ...string) {
	p.tb.Helper()
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		p.tb.Errorf("%v: %v: %s", line, err, out)
	}
}

func (p *namespaces) pullJob(senders int) pullJob {
	return pullJob{Sources: p.sources[:senders], Size: p.copied.Size, Digest: p.copied.SHA512}
}

// TestPullWhenAnInterfaceGoesDown: nothing closes the connection, no more comes.
func TestPullContinuesWhenAnInterfaceGoesDown(t *testing.T) {
	t.Parallel()
	p := newNamespaces(t, 2, 64*mib)
	o := p.pullJob(2)
	o.NotifyAt = 16 * mib
	done := pullInProcess(t, t.TempDir(), o, func() {
		p.run("ip", "-n", p.senders[0], "link", "set", "up0", "down")
	}, execIn(p.receiver)...)
	if done.LongestPause > 15 {
		t.Errorf("for %.1f s nothing came", done.LongestPause)
	}
	if most := p.copied.Size / 100 * 105; done.Received > most {
		t.Errorf("%d bytes came of %d, want at most 5%% twice", done.Received, p.copied.Size)
	}
	if rest := float64(p.copied.Size-o.NotifyAt) / (100 * mbit); done.Seconds < rest {
		t.Errorf("it took %.1f s, but %.1f at least from the other one alone", done.Seconds, rest)
	}
	t.Logf("%.1f s, the longest pause %.1f s, %.1f MiB came", done.Seconds, done.LongestPause, float64(done.Received)/mib)
}

// BenchmarkSenders compares senders at 100 Mbit/s each with one of them.
func BenchmarkSenders(b *testing.B) {
	for _, senders := range []int{2, 3} {
		b.Run(fmt.Sprint(senders), func(b *testing.B) {
			p := newNamespaces(b, senders, 128*mib)
			var one, all []pullResult
			for b.Loop() {
				one = append(one, pullInProcess(b, b.TempDir(), p.pullJob(1), nil, execIn(p.receiver)...))
				all = append(all, pullInProcess(b, b.TempDir(), p.pullJob(senders), nil, execIn(p.receiver)...))
			}
			seconds := func(o pullResult) float64 { return o.Seconds }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(one, seconds).Seconds, "s-one")
			b.ReportMetric(median(all, seconds).Seconds, "s")
			b.ReportMetric(median(one, seconds).Seconds/median(all, seconds).Seconds, "x-one")
			b.ReportMetric(float64(median(all, seconds).Received)/float64(p.copied.Size)*100-100, "%-twice")
		})
	}
}
