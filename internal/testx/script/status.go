package script

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

var statusCommands = []command{
	{name: "wait-config", args: "[-in DIR] URL...", min: 1, max: -1, run: waitConfig,
		doc: "Waits until the daemons at the URLs use the configuration of conf, or of DIR, and have completed one more round."},
	{name: "wait-rounds", args: "URL N", min: 2, max: 2, run: waitRounds,
		doc: "Waits until the daemon at URL has completed N more rounds."},
	{name: "status", args: "URL PATTERN...", asserts: true, min: 2, max: -1, run: matchStatus,
		doc: "Asserts that the status of the daemon at URL matches all regular expressions. The status is converted to the lines `config ALLOWED FAULT SKEW`, `node2 answers=true PROBLEM`, `node2/disk1 PROBLEM`, `NAME-UUID READY/WANTED MESSAGE`, `NAME-UUID node2/disk1 STATE MESSAGE` and `NAME-UUID node2/disk1 passed over: REASON`."},
	{name: "metric", args: "URL METRIC <|=|> N", asserts: true, min: 4, max: 4, run: metric,
		doc: "Compares a metric of the daemon at URL with N. METRIC is the name without its prefix, and the value is the sum over all labels."},
}

func waitConfig(s script, args []string) error {
	dir := "conf"
	if len(args) > 2 && args[0] == "-in" {
		dir, args = args[1], args[2:]
	}
	snapshot, err := configdir.Read(s.MkAbs(dir))
	if err != nil {
		return err
	}
	declared := load.NewLoader().Load(context.Background(), snapshot)
	if declared.Digest == "" {
		return fmt.Errorf("%s is not valid: %v", dir, declared.Errors)
	}
	for _, url := range args {
		s.waitFor(url+" does not use the configuration", func() bool {
			status, err := getStatus(url)
			return err == nil && status.Config.Digest == declared.Digest
		})
	}
	for _, url := range args {
		if err := waitRounds(s, []string{url, "1"}); err != nil {
			return err
		}
	}
	return nil
}

func waitRounds(s script, args []string) error {
	more, err := strconv.Atoi(args[1])
	s.Check(err)
	first, err := sumMetric(args[0], "rounds_total")
	if err != nil {
		return err
	}
	s.waitFor(fmt.Sprintf("%s does not make %d rounds", args[0], more), func() bool {
		n, err := sumMetric(args[0], "rounds_total")
		s.Check(err)
		return n >= first+float64(more)
	})
	return nil
}

func getStatus(url string) (status.Status, error) {
	client, err := api.NewClient(url, "", auth.TLSFiles{})
	if err != nil {
		return status.Status{}, err
	}
	return client.Status(context.Background())
}

func matchStatus(s script, args []string) error {
	status, err := getStatus(args[0])
	if err != nil {
		return err
	}
	text := statusLines(status)
	for _, pattern := range args[1:] {
		match, err := regexp.Compile("(?m)" + pattern)
		s.Check(err)
		if !match.MatchString(text) {
			return fmt.Errorf("no match for %q in the status of %s:\n%s", pattern, args[0], text)
		}
	}
	return nil
}

// statusLines converts a status to the lines that the README describes.
func statusLines(s status.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %s %s %s\n", s.Config.Allowed, s.Config.Fault, s.Config.Skew)
	for _, p := range s.Peers {
		fmt.Fprintf(&b, "%s answers=%v %s\n", p.Node, p.Responds, p.Problem)
	}
	for _, d := range s.Disks {
		fmt.Fprintf(&b, "%s/%s %s\n", d.Node, d.Name, strings.Join(d.Faults(), "; "))
	}
	for _, image := range s.Images {
		fmt.Fprintf(&b, "%s-%s %d/%d %s\n", image.Name, image.UUID, image.Ready, image.Desired, image.Message)
		for _, c := range image.Copies {
			fmt.Fprintf(&b, "%s-%s %s/%s %s %s\n", image.Name, image.UUID, c.Node, c.Disk, c.State, copyMessage(c))
		}
		for _, passed := range image.PassedOver {
			for _, ref := range passed.Disks {
				fmt.Fprintf(&b, "%s-%s %s passed over: %s\n", image.Name, image.UUID, ref, passed.Reason)
			}
		}
	}
	return b.String()
}

func copyMessage(c status.CopyStatus) string {
	parts := []string{}
	if c.Message != "" {
		parts = append(parts, c.Message)
	}
	if c.UsedBy != "" && !strings.Contains(c.Message, c.UsedBy) {
		parts = append(parts, c.UsedBy)
	}
	if !c.Until.IsZero() {
		parts = append(parts, "until "+c.Until.Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}

func metric(s script, args []string) error {
	sum, err := sumMetric(args[0], args[1])
	if err != nil {
		return err
	}
	return compare(args[1], sum, args[2], args[3], s.size)
}

// sumMetric returns the sum of a metric over its labels. The name may contain a label selection in
// the syntax of the exposition format.
func sumMetric(url, metric string) (float64, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := io.Copy(&body, response.Body); err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	name := "backing_image_manager_" + metric
	for line := range strings.Lines(body.String()) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", url, metric)
	}
	return sum, nil
}
