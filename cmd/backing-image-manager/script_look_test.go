package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

// taken waits for daemons to know the configuration, see script_test.go.
func taken(ts *testscript.TestScript, neg bool, args []string) {
	dir := "conf"
	if len(args) > 1 && args[0] == "-in" {
		dir, args = args[1], args[2:]
	}
	if neg || len(args) == 0 {
		ts.Fatalf("usage: taken [-in DIR] URL...")
	}
	declared, err := load(context.Background(), io.Discard, ts.MkAbs(dir))
	ts.Check(err)
	for _, url := range args {
		waitFor(ts, url+" does not take the configuration", func() bool {
			s, err := (&daemonFlags{url: url}).status(context.Background())
			return err == nil && s.Config.Digest == declared.Digest && s.Config.Digest != ""
		})
	}
	for _, url := range args {
		moreRounds(ts, false, []string{url, "1"})
	}
}

// shows matches a status, see script_test.go.
func shows(ts *testscript.TestScript, args []string) error {
	if len(args) < 2 {
		ts.Fatalf("usage: shows URL PATTERN...")
	}
	s, err := (&daemonFlags{url: args[0]}).status(context.Background())
	if err != nil {
		return err
	}
	text := linesOf(s)
	for _, pattern := range args[1:] {
		if !regexp.MustCompile("(?m)" + pattern).MatchString(text) {
			return fmt.Errorf("no match for %q in the status of %s:\n%s", pattern, args[0], text)
		}
	}
	return nil
}

// linesOf writes a status with a line for each thing in it.
func linesOf(s reconcile.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %s %s %s\n", s.Config.Allowed, s.Config.Fault, s.Config.Skew)
	for _, p := range s.Peers {
		fmt.Fprintf(&b, "%s answers=%v %s\n", p.Node, p.Answers, p.Problem)
	}
	for _, d := range s.Disks {
		fmt.Fprintf(&b, "%s/%s %s\n", d.Node, d.Disk, d.Problem)
	}
	for _, image := range s.Images {
		fmt.Fprintf(&b, "%s-%s %d/%d %s\n", image.Name, image.UUID, image.Ready, image.Wanted, image.Message)
		for _, c := range image.Copies {
			fmt.Fprintf(&b, "%s-%s %s/%s %s %s\n", image.Name, image.UUID, c.Node, c.Disk, c.State, report.CopyMessage(c))
		}
		for _, passed := range image.PassedOver {
			for _, ref := range passed.Disks {
				fmt.Fprintf(&b, "%s-%s %s passed over: %s\n", image.Name, image.UUID, ref, passed.Why)
			}
		}
	}
	return b.String()
}

// metric compares one, see script_test.go.
func metric(ts *testscript.TestScript, args []string) error {
	if len(args) != 4 {
		ts.Fatalf("usage: metric URL METRIC <|=|> N")
	}
	var body bytes.Buffer
	if err := sendHTTP(ts, []string{"GET", args[0] + "/metrics"}, &body, io.Discard); err != nil {
		return err
	}
	sum, want := 0.0, float64(parseSize(ts, args[3]))
	found := false
	for line := range strings.Lines(body.String()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "backing_image_manager_"+args[1] && !strings.HasPrefix(name, "backing_image_manager_"+args[1]+"{") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		ts.Check(err)
		sum, found = sum+v, true
	}
	holds := map[string]bool{"<": sum < want, "=": sum == want, ">": sum > want}
	switch {
	case !found:
		return fmt.Errorf("%s has no metric %s", args[0], args[1])
	case !holds[args[2]]:
		return fmt.Errorf("%s is %.0f and not %s %s", args[1], sum, args[2], args[3])
	}
	return nil
}

// sent compares the bytes that an origin sent, see script_test.go.
func sent(ts *testscript.TestScript, args []string) error {
	if len(args) != 3 {
		ts.Fatalf("usage: sent VAR <|>|= SIZE")
	}
	var sum int64
	for _, r := range originOf(ts, args[0]).Requests() {
		sum += r.Sent
	}
	want := parseSize(ts, args[2])
	if holds := map[string]bool{"<": sum < want, "=": sum == want, ">": sum > want}; !holds[args[1]] {
		return fmt.Errorf("the origin has sent %d bytes", sum)
	}
	return nil
}

// held are answers that a script has begun to read, by their names.
type held map[string]io.Closer

type heldKey struct{}

// hold begins to read an answer, see script_test.go.
func hold(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: hold NAME URL")
	}
	answer, err := new(http.Transport).RoundTrip(httptest.NewRequest(http.MethodGet, args[1], nil))
	ts.Check(err)
	ts.Value(heldKey{}).(held)[args[0]] = answer.Body
	ts.Defer(func() { _ = answer.Body.Close() })
	if _, err := io.ReadFull(answer.Body, make([]byte, 1)); err != nil || answer.StatusCode != http.StatusOK {
		ts.Fatalf("%s: %s, error %v", args[1], answer.Status, err)
	}
}

// release hangs up, see script_test.go.
func release(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: release NAME")
	}
	ts.Check(ts.Value(heldKey{}).(held)[args[0]].Close())
}
