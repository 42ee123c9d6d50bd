package examples

import (
	"bytes"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// ruleFile is a file of rules for Prometheus.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert string `json:"alert"`
			Expr  string `json:"expr"`
		} `json:"rules"`
	} `json:"groups"`
}

// unitTests is a file of tests for promtool.
type unitTests struct {
	RuleFiles []string    `json:"rule_files,omitempty"`
	Tests     []testGroup `json:"tests"`
}

type testGroup struct {
	Interval    string        `json:"interval"`
	InputSeries []inputSeries `json:"input_series"`
	AlertTests  []alertTest   `json:"alert_rule_test,omitempty"`
	ExprTests   []exprTest    `json:"promql_expr_test,omitempty"`
}

type inputSeries struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type alertTest struct {
	EvalTime string            `json:"eval_time"`
	Alert    string            `json:"alertname"`
	Alerts   []json.RawMessage `json:"exp_alerts"`
}

type exprTest struct {
	Expr     string   `json:"expr"`
	EvalTime string   `json:"eval_time"`
	Samples  []sample `json:"exp_samples"`
}

type sample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// alertTestFiles are the files with the tests of prometheus/rules.yaml.
var alertTestFiles = []string{"rules_test.yaml", "rules_long_test.yaml"}

func readYAML(t *testing.T, file string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("prometheus", file))
	if err == nil {
		err = yaml.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestAlertsFireAndEnd(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, append([]string{"test", "rules"}, alertTestFiles...), {"check", "config", "--syntax-only", "prometheus.yaml"}} {
		cmd := need.Command(t, "promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	// fires counts, by alert, the groups in which it does not fire, then fires, and then does not fire again.
	fires := map[string]int{}
	for _, file := range alertTestFiles {
		var tests unitTests
		readYAML(t, file, &tests)
		for _, group := range tests.Tests {
			history := map[string]string{}
			for _, check := range group.AlertTests {
				history[check.Alert] += map[bool]string{true: "+", false: "-"}[len(check.Alerts) > 0]
			}
			for alert, changes := range history {
				if regexp.MustCompile(`^-+\++-+$`).MatchString(changes) {
					fires[alert]++
				}
			}
		}
	}
	var rules ruleFile
	readYAML(t, "rules.yaml", &rules)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if fires[rule.Alert] == 0 {
				t.Errorf("no test shows that %s fires and ends", rule.Alert)
			}
		}
	}
}

// TestRulesAndDashboardUseWhatDaemonsExport evaluates the expressions of the rules and of the dashboard with the
// metrics of real daemons.
func TestRulesAndDashboardUseWhatDaemonsExport(t *testing.T) {
	need.Programs(t, "promtool", "git")
	series := exportedSeries(t)

	var wants []want
	var rules ruleFile
	readYAML(t, "rules.yaml", &rules)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			wants = append(wants, selectorsOf(t, rule.Alert, rule.Expr)...)
		}
	}
	if len(wants) < 21 {
		t.Fatalf("found only %v", wants)
	}
	wants = append(wants, dashboardWants(t)...)
	for _, problem := range evaluate(t, series, wants) {
		t.Error(problem)
	}

	shapes := map[string]bool{"up{instance,job}": true}
	for _, s := range series {
		shapes[shape(s.Series)] = true
	}
	for _, file := range alertTestFiles {
		var tests unitTests
		readYAML(t, file, &tests)
		for _, group := range tests.Tests {
			for _, s := range group.InputSeries {
				if !shapes[shape(s.Series)] {
					t.Errorf("%s: no daemon exports a series like %s", file, s.Series)
				}
			}
		}
	}
}

var seriesLabel = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)

// shape returns the name of a series with the names of its labels.
func shape(series string) string {
	name, labels, _ := strings.Cut(series, "{")
	var names []string
	for _, m := range seriesLabel.FindAllStringSubmatch(labels, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return name + "{" + strings.Join(names, ",") + "}"
}

// want is an expression that must have a result in which every series has the labels.
type want struct {
	where, expr string
	labels      []string
}

// selectorsOf returns the selectors of an expression, and those for its negative matchers.
func selectorsOf(t *testing.T, where, expr string) []want {
	t.Helper()
	found, err := selectors(expr)
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: selectors %q, error %v", where, found, err)
	}
	var all []want
	for _, selector := range found {
		for _, s := range append(positive(selector), selector) {
			all = append(all, want{where, s, nil})
		}
	}
	return all
}

// evaluate returns the wants that are not met.
func evaluate(t *testing.T, series []inputSeries, wants []want) []string {
	t.Helper()
	group := testGroup{Interval: "1m", InputSeries: series}
	for _, w := range wants {
		// Each label adds another one, which all series of the result must have.
		expr, labels := w.expr, ""
		for i, name := range w.labels {
			expr = fmt.Sprintf(`label_replace(%s, "has%d", "yes", %q, ".+")`, expr, i, name)
			labels += fmt.Sprintf(`,has%d="yes"`, i)
		}
		by := strings.ReplaceAll(strings.TrimPrefix(labels, ","), `="yes"`, "")
		group.ExprTests = append(group.ExprTests, exprTest{
			Expr: fmt.Sprintf("group by (%s) (%s)", by, expr), EvalTime: "30m",
			Samples: []sample{{"{" + strings.TrimPrefix(labels, ",") + "}", 1}},
		})
	}
	data, err := yaml.Marshal(unitTests{Tests: []testGroup{group}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tests.yaml")
	write(t, file, string(data))
	out, err := need.Command(t, "promtool", "test", "rules", file).CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	var problems []string
	for i, test := range group.ExprTests {
		if bytes.Contains(out, []byte(fmt.Sprintf("expr: %q, time: 30m,", test.Expr))) {
			problems = append(problems, fmt.Sprintf("%s: %s has no result, or one without one of the labels %q", wants[i].where, wants[i].expr, wants[i].labels))
		}
	}
	if err != nil && len(problems) == 0 || err == nil && !bytes.Contains(out, []byte("SUCCESS")) {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	return problems
}

// A wrong name or value must not be accepted, wherever it is.
func TestWrongNamesInExpressionsAreFound(t *testing.T) {
	need.Programs(t, "promtool")
	series := []inputSeries{{`a{job="j",state="failed"}`, "1x40"}, {`b_total{job="j"}`, "0x40"}}
	for _, w := range []want{{"", `a{state="failed"}`, nil}, {"", "rate(b_total[5m])", []string{"job"}}, {"", `a{state!="ready"}`, []string{"job", "state"}}} {
		if problems := evaluate(t, series, []want{w}); len(problems) > 0 {
			t.Error(problems)
		}
	}
	wrong := []want{
		{"metric", "c", nil}, {"metric in a sum", "sum(c)", nil}, {"metric in a range", "rate(c_total[5m])", nil}, {"value of a label", `a{state="faild"}`, nil},
		{"name of a label", `a{stat="failed"}`, nil}, {"label of a legend", "sum by (job) (a)", []string{"state"}}, {"label of a sum", "sum by (jop) (a)", []string{"job"}},
		{"label of one of two series", `a or b_total`, []string{"state"}},
	}
	for _, expr := range []string{"sum(a) or sum(c)", `a{state="failed", x!="y"}`} {
		if problems := evaluate(t, series, selectorsOf(t, "", expr)); len(problems) != 1 {
			t.Errorf("%s: %q, want one problem", expr, problems)
		}
	}
	if problems := evaluate(t, series, wrong); len(problems) != len(wrong) {
		t.Errorf("%d problems, want %d:\n%s", len(problems), len(wrong), strings.Join(problems, "\n"))
	}
}

// exportedSeries runs a cluster with a failed image, a damaged copy, a suspended image, images removed at once, and
// a node that does not respond, and returns the series that Prometheus gets from its daemons. They have a certificate, and a server
// that accepts no reports.
func exportedSeries(t *testing.T) []inputSeries {
	t.Helper()
	dir := t.TempDir()
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content) // never fails
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut || r.Method == http.MethodPost {
			http.Error(w, "no messages are accepted here", http.StatusInternalServerError)
			return
		}
		http.ServeContent(w, r, "image.raw", time.Time{}, bytes.NewReader(content))
	}))
	t.Cleanup(server.Close)
	source := fmt.Sprintf("source: {download: {url: %q}}", server.URL+"/image.raw")
	config := filepath.Join(dir, "config")
	write(t, filepath.Join(config, "images.yaml"), fmt.Sprintf(`
images:
  parrot: {uuid: "00000001", minNumberOfCopies: 2, nodeSelector: [storage], %[1]s}
  macaw: {uuid: "00000002", nodeSelector: [storage], checksum: %[2]q, %[1]s}
  finch: {uuid: "00000003", nodeSelector: [storage], checksum: "%[3]x", suspend: {reason: test}, %[1]s}
settings:
  allowLoopbackSources: true
  pruneLimit: 1
  report: {url: "%[4]s/{node}.json"}
  notify: {url: "%[4]s/events", format: cloudevents}
`, source, strings.Repeat("0", 128), sha512.Sum512(content), server.URL))
	removed := filepath.Join(config, "removed.yaml")
	write(t, removed, fmt.Sprintf(`images: {owl: {uuid: "00000004", nodeSelector: [storage], %[1]s}, heron: {uuid: "00000005", nodeSelector: [storage], %[1]s}}`, source))
	files, trust := certificateOfAllNodes(t, dir)
	addresses := map[string]string{}
	nodes := "nodes:\n"
	for i, name := range []string{"edge-1", "edge-2", "edge-3"} {
		at, err := freeport.Address(fmt.Sprintf("127.0.0.%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		addresses[name] = at
		disk := filepath.Join(dir, name)
		if err := os.Mkdir(disk, 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, "", builtImage(t).program, "disk", "init", disk)
		tag := map[bool]string{true: "storage", false: "none"}[i < 2]
		nodes += fmt.Sprintf("  %s: {address: \"https://%s\", tags: [%s], disks: {system: {path: %q}}}\n", name, at, tag, disk)
	}
	write(t, filepath.Join(config, "nodes.yaml"), nodes)
	run(t, config, "git", "init", "-q")
	run(t, config, "git", "add", ".")
	run(t, config, "git", "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "test")

	daemons := map[string]*exec.Cmd{}
	for name, at := range addresses {
		cmd := exec.Command(builtImage(t).program, append([]string{"daemon", "--config-dir", config, "--node", name, "--listen", at, "--interval", "500ms", "--log-file", filepath.Join(dir, name+".log")}, files...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		daemons[name] = cmd
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
	}
	run(t, "", append([]string{builtImage(t).program, "wait", "--for", "ready", "--url", "https://" + addresses["edge-1"], "--timeout", timeout.String(), "parrot", "owl", "heron"}, files...)...)
	if err := os.Remove(removed); err != nil {
		t.Fatal(err)
	}
	if err := daemons["edge-3"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	delete(addresses, "edge-3")
	damage(t, filepath.Join(dir, "edge-1/backing-images/parrot-00000001/backing"))
	return waitForSeries(t, addresses, trust,
		`copies\{.*state="ready"\} [1-9]`, `config_info\{.*revision="[0-9a-f]{40}"\}`, `peer_reachable\{.*peer="edge-3"\} 0`,
		`disk_last_damage_timestamp_seconds\{.*disk="system"\}`, `failures_total\{.*class=`, `actions_total\{.*op="sync"\}`, `missing_copies\{.*image="macaw"\}`, `remaining_copies\{.*image="macaw"\}`,
		`certificate_expiration_timestamp_seconds\{`, `delivery_failing\{.*setting="report"\} 1`, `delivery_failing\{.*setting="notify"\} 0`,
		`waiting_actions\{.*code="prune-limit",op="blocked"\}`, `waiting_actions\{.*code="suspended",op="blocked"\}`, `waiting_actions\{.*code="rejected",op="blocked"\}`,
	)
}

// certificateOfAllNodes writes a certificate below dir that is valid for 127.0.0.1 to 127.0.0.3. It returns the flags with it, and
// the TLS configuration of a caller that has it.
func certificateOfAllNodes(t *testing.T, dir string) (flags []string, caller *tls.Config) {
	t.Helper()
	authority, err := certtest.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	c, err := authority.Issue("edge", nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{"cert": c.Cert, "key": c.Key, "ca": authority.PEM()} {
		path := filepath.Join(dir, "tls."+file)
		write(t, path, string(content))
		flags = append(flags, "--tls-"+file, path)
	}
	caller = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: x509.NewCertPool()}
	caller.RootCAs.AppendCertsFromPEM(authority.PEM())
	return flags, caller
}

// damage changes one byte of a file.
func damage(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{b[0] ^ 1}, 1000); err != nil {
		t.Fatal(err)
	}
}

var exposed = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`)

// waitForSeries returns the series of the daemons at the addresses, by node, as soon as each pattern matches one of
// them. The label instance is the name of the node.
func waitForSeries(t *testing.T, addresses map[string]string, caller *tls.Config, patterns ...string) []inputSeries {
	t.Helper()
	over := time.After(timeout)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	transport := &http.Transport{TLSClientConfig: caller}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: timeout}
	for {
		var all []inputSeries
		var text strings.Builder
		for node, at := range addresses {
			labels := fmt.Sprintf("job=%q,instance=%q", "backing-image-manager", node)
			all = append(all, inputSeries{"up{" + labels + "}", "1x40"})
			for _, m := range exposed.FindAllStringSubmatch(scrape(t, client, "https://"+at+"/metrics"), -1) {
				value, err := strconv.ParseFloat(m[3], 64)
				if err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprintf("%s{%s}", m[1], strings.TrimSuffix(labels+","+m[2], ","))
				all = append(all, inputSeries{name, strconv.FormatFloat(value, 'f', -1, 64) + "x40"})
				fmt.Fprintln(&text, name, m[3])
			}
		}
		missing := slices.DeleteFunc(slices.Clone(patterns), func(p string) bool { return regexp.MustCompile(p).MatchString(text.String()) })
		if len(missing) == 0 {
			return all
		}
		select {
		case <-over:
			t.Fatalf("no series match %q:\n%s", missing, text.String())
		case <-tick.C:
		}
	}
}

func scrape(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, error %v", url, response.Status, err)
	}
	return string(text)
}

// dashboard is the part of a Grafana dashboard that the test checks.
type dashboard struct {
	ID            *int   `json:"id"`
	UID           string `json:"uid"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID         int        `json:"id"`
	Type       string     `json:"type"`
	Title      string     `json:"title"`
	Datasource datasource `json:"datasource"`
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct {
		RefID        string     `json:"refId"`
		Datasource   datasource `json:"datasource"`
		Expr         string     `json:"expr"`
		LegendFormat string     `json:"legendFormat"`
	} `json:"targets"`
	Transformations []struct {
		ID      string `json:"id"`
		Options struct {
			RenameByName map[string]string `json:"renameByName"`
		} `json:"options"`
	} `json:"transformations"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

var (
	legendLabel   = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	labelValues   = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	columnOfValue = regexp.MustCompile(`^Value( #[A-Z])?$`)
	grafanaNames  = strings.NewReplacer("$job", "backing-image-manager", "$node", ".*", "$__rate_interval", "5m")
)

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	data, err := os.ReadFile("prometheus/dashboard.json")
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil || len(d.Panels) == 0 {
		t.Fatalf("%d panels, error %v", len(d.Panels), err)
	}
	return d
}

// dashboardWants returns what the variables and the panels of the dashboard must show: results with the labels of the
// legend, or with those that are columns.
func dashboardWants(t *testing.T) []want {
	t.Helper()
	expr := func(where, text string) string {
		text = grafanaNames.Replace(text)
		if strings.Contains(text, "$") {
			t.Errorf("%s: %s has an unknown variable", where, text)
		}
		return text
	}
	d := readDashboard(t)
	var wants []want
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			m := labelValues.FindStringSubmatch(v.Definition)
			wants = append(wants, want{"variable " + v.Name, expr(v.Name, m[1]), []string{m[2]}})
		}
	}
	for _, p := range d.Panels {
		var labels []string
		for _, transformation := range p.Transformations {
			for column := range transformation.Options.RenameByName {
				if !columnOfValue.MatchString(column) {
					labels = append(labels, column)
				}
			}
		}
		slices.Sort(labels)
		for _, target := range p.Targets {
			where := fmt.Sprintf("panel %q, query %s", p.Title, target.RefID)
			names := slices.Clone(labels)
			for _, m := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				names = append(names, m[1])
			}
			text := expr(where, target.Expr)
			wants = append(append(wants, want{where, text, names}), selectorsOf(t, where, text)...)
		}
	}
	return wants
}

func TestDashboardCanBeImported(t *testing.T) {
	d := readDashboard(t)
	if d.ID != nil || d.UID != "backing-image-manager" || d.SchemaVersion < 39 {
		t.Errorf("id %v, uid %q, schemaVersion %d", d.ID, d.UID, d.SchemaVersion)
	}
	want := datasource{"prometheus", "${datasource}"}
	for i, p := range d.Panels {
		if p.Type != "row" && p.Datasource != want {
			t.Errorf("panel %q has the data source %+v", p.Title, p.Datasource)
		}
		for _, target := range p.Targets {
			if target.Datasource != want {
				t.Errorf("panel %q, query %s has the data source %+v", p.Title, target.RefID, target.Datasource)
			}
		}
		a := p.GridPos
		if a.W < 1 || a.H < 1 || a.X+a.W > 24 {
			t.Errorf("panel %q is at %+v", p.Title, a)
		}
		for _, other := range d.Panels[:i] {
			b := other.GridPos
			if p.ID == other.ID || a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q have the same id or overlap", p.Title, other.Title)
			}
		}
	}
}
