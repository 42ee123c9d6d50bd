package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// mutatingCommands are the commands that change the cluster.
var mutatingCommands = []command{
	{
		synopsis: "config DIR",
		help:     "Applies the configuration in a folder of the scenario on all nodes. With ! it must have\nerrors, and is applied as running managers apply it.",
		minArgs:  1, maxArgs: 1, negated: true,
		do: func(st *session, in input) error { return st.configure(in.args[0], in.neg) },
	},
	{
		synopsis: "state FILE...",
		help:     "Sets the cluster and the clock to saved status documents (the output of status -o json).",
		minArgs:  1, maxArgs: -1,
		do: loadStates,
	},
	{
		synopsis: "drain NODE|NODE/DISK [off]",
		help:     "Requests the eviction of a node or a disk, whatever the files declare. off ends this\nrequest.",
		minArgs:  1, maxArgs: 1, words: []string{"off"},
		do: setDrained,
	},
	{
		synopsis: "node NODE down|up",
		help:     "Stops or starts a node. A node that is down neither works nor responds.",
		minArgs:  1, maxArgs: 1, words: []string{"down", "up"},
		do: setNode,
	},
	{
		synopsis: "disk NODE/DISK [gone|back] [free=SIZE]",
		help:     "Detaches or attaches a disk, like an unmount or a mount: it keeps its copies. free sets\nthe free space.",
		minArgs:  1, maxArgs: 1, words: []string{"gone", "back"}, options: []string{"free"},
		do: setDisk,
	},
	{
		synopsis: "copy IMAGE NODE/DISK [ready|failed|unknown|none] [size=SIZE] [used=DURATION] [unwanted=DURATION]",
		help:     "Puts a copy on a disk, ready by default; none removes it. used is the time since its\nlast use, unwanted the time since it became surplus. IMAGE is a name, or NAME-UUID for\nanother generation or an undeclared image. unknown means a copy of Longhorn to adopt.",
		minArgs:  2, maxArgs: 2, words: []string{"ready", "failed", "unknown", "none"}, options: []string{"size", "used", "unwanted"},
		do: setCopy,
	},
	{
		synopsis: "use IMAGE NODE/DISK",
		help:     "Lets a replica on the disk use the image. If the disk has no copy, the replica needs one.",
		minArgs:  2, maxArgs: 2,
		do: func(st *session, in input) error { return setUsed(st, in, true) },
	},
	{
		synopsis: "unuse IMAGE NODE/DISK",
		help:     "Ends the use of the image on the disk.",
		minArgs:  2, maxArgs: 2,
		do: func(st *session, in input) error { return setUsed(st, in, false) },
	},
	{
		synopsis: "serve IMAGE [size=SIZE] [from=NODE,...] [fails|fails=" + strings.Join(failureNames(), "|") + "]",
		help:     "Sets the source of an image: its size, the nodes that can reach it (for a volume: those\nwith a replica), or its failure. fails without a value means fails=network.",
		minArgs:  1, maxArgs: 1, words: []string{"fails"}, options: []string{"size", "from", "fails"},
		do: setSource,
	},
	{
		synopsis: "advance DURATION",
		help:     "Moves the clock. The managers observe, but execute nothing.",
		minArgs:  1, maxArgs: 1,
		do: func(st *session, in input) error {
			d, err := load.ParseInterval(in.args[0])
			if err == nil {
				st.world.advance(d)
			}
			return err
		},
	},
	{
		synopsis: "clock DATE|TIME",
		help:     "Moves the clock forward to 2027-01-31 or 2027-01-31T18:00:00Z. It starts at " + start.Format(time.DateOnly) + ".",
		minArgs:  1, maxArgs: 1,
		do: setClock,
	},
	{
		synopsis: "converge [for=DURATION]",
		help:     "Lets all managers work until only waits are left, and prints their actions. With for, the\nclock moves from deadline to deadline until the duration has passed.",
		options:  []string{"for"},
		do:       converge,
	},
	{
		synopsis: "forget",
		help:     "Clears the history of actions. The command \"never\" then ignores earlier actions.",
		do: func(st *session, _ input) error {
			st.forgotten = len(st.world.history)
			return nil
		},
	},
}

func loadStates(st *session, in input) error {
	saved := &status.SavedCluster{}
	for _, name := range in.args {
		file, err := st.path(name)
		if err != nil {
			return err
		}
		if err := saved.AddFile(file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	st.world.restore(saved)
	return nil
}

func setDrained(st *session, in input) error {
	what := in.args[0]
	_, err := parseDisk(st.world.base.Config, what)
	if !strings.Contains(what, "/") {
		err = checkNode(st.world.base.Config, what)
	}
	switch {
	case err != nil:
		return err
	case in.has("off") && !st.drained[what]:
		return fmt.Errorf("%s is not drained", what)
	case in.has("off"):
		delete(st.drained, what)
	default:
		st.drained[what] = true
	}
	return st.world.configure(st.withDrained())
}

func setNode(st *session, in input) error {
	if len(in.words) != 1 {
		return errors.New("write either down or up")
	}
	st.world.setUp(in.args[0], in.has("up"))
	return nil
}

func setDisk(st *session, in input) error {
	word, err := in.one("", "gone", "back")
	if err != nil {
		return err
	}
	free, err := option(in, "free", load.ParseQuantity, -1)
	switch {
	case err != nil:
		return err
	case free >= 0:
		st.world.at(in.disk).SetFree(free)
		st.world.changed()
	case word == "":
		return errors.New("write gone, back or free=SIZE")
	}
	if word != "" {
		st.world.setAttached(in.disk, word == "back")
	}
	return nil
}

func setCopy(st *session, in input) error {
	state, err := in.one("ready", "failed", "unknown", "none")
	if err != nil {
		return err
	}
	size, err := option(in, "size", load.ParseQuantity, st.world.sourceOf(in.image.Name).size)
	if err != nil {
		return err
	}
	c := st.world.newCopy(in.image, model.State(state), size)
	for name, at := range map[string]*time.Time{"used": &c.Usage.LastUsed, "unwanted": &c.Usage.SurplusSince} {
		ago, err := option(in, name, load.ParseInterval, -1)
		if err != nil {
			return err
		}
		if ago >= 0 {
			*at, c.Usage.ClockNode = st.world.now.Add(-ago), in.disk.Node
		}
	}
	if state == "none" {
		c = nil
	}
	st.world.putCopy(in.copy(), c)
	return nil
}

func setUsed(st *session, in input, used bool) error {
	st.world.setUsed(in.copy(), used)
	return nil
}

func setSource(st *session, in input) error {
	id := in.image
	if st.world.base.Config.Images[id.Name].Source.Upload != nil {
		return fmt.Errorf("%s has no source, because it is uploaded; put a copy on a disk with: copy %s NODE/DISK", id.Name, id.Name)
	}
	if in.has("fails") {
		in.options["fails"] = []string{"network"}
	}
	var s source
	var errs [3]error
	s.size, errs[0] = option(in, "size", load.ParseQuantity, initialSize)
	s.nodes, errs[1] = option(in, "from", st.parseNodes, nil)
	s.err, errs[2] = option(in, "fails", func(name string) (failure, err error) { return newFailure(st.world.base.Config, id.Name, name) }, nil)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	st.world.sources[id.Name] = s
	st.world.changed()
	return nil
}

// parseNodes parses NODE,....
func (st *session) parseNodes(text string) ([]string, error) {
	nodes := strings.Split(text, ",")
	for _, node := range nodes {
		if err := checkNode(st.world.base.Config, node); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func setClock(st *session, in input) error {
	at, err := time.Parse(time.DateOnly, in.args[0])
	if err != nil {
		at, err = time.Parse(time.RFC3339, in.args[0])
	}
	if err != nil {
		return fmt.Errorf("%q is neither a date such as 2027-01-31 nor a time such as 2027-01-31T18:00:00Z", in.args[0])
	}
	if at.Before(st.world.now) {
		return fmt.Errorf("the clock moves forward only: it is %s", st.world.now.Format(time.RFC3339))
	}
	st.world.advance(at.Sub(st.world.now))
	return nil
}

// assertCommands are the commands that print or check.
var assertCommands = []command{
	{
		synopsis: "plan [NODE] [-o text|json|yaml|markdown]",
		help:     "Prints the plan of all nodes, or of one, for stdout and cmp stdout FILE.",
		maxArgs:  2, words: []string{"-o"},
		do: printPlan,
	},
	{
		synopsis: "placed IMAGE NODE/DISK...",
		help:     "Exactly these disks have a reachable ready copy. A disk that is gone, or whose node is\ndown, is not reachable.",
		minArgs:  2, maxArgs: -1,
		check: checkPlaced,
	},
	{
		synopsis: "copies IMAGE N|=N [on=TAG]...",
		help:     "At least (with =: exactly) N ready copies are on disks with all of these tags. A disk\nalso has the tags of its node, and the name of its node as a tag.",
		minArgs:  2, maxArgs: 2, options: []string{"on"},
		check: checkCopies,
	},
	{
		synopsis: "blocked IMAGE [REGEXP]",
		help:     "The plan has a blocked action of the image, and its reason matches REGEXP.",
		minArgs:  1, maxArgs: 2,
		check: func(st *session, in input) (checkResult, error) { return checkPlanned(st, in, model.Blocked) },
	},
	{
		synopsis: "waits IMAGE [REGEXP]",
		help:     "The plan has a waiting action of the image, and its reason matches REGEXP.",
		minArgs:  1, maxArgs: 2,
		check: func(st *session, in input) (checkResult, error) { return checkPlanned(st, in, model.Wait) },
	},
	{
		synopsis: "never ACTION [IMAGE]",
		help:     "No such action was executed, with or without success, since the start or the last forget.\nThe actions are those of a plan: download, sync, evict, cleanup, …",
		minArgs:  1, maxArgs: 2,
		check: checkNever,
	},
}

func printPlan(st *session, in input) error {
	format, args := report.Text, in.args
	if in.has("-o") && len(args) > 0 {
		format, args = report.Format(args[len(args)-1]), args[:len(args)-1]
	} else if in.has("-o") {
		format = ""
	}
	if !slices.Contains([]report.Format{report.Text, report.JSON, report.YAML, report.Markdown}, format) {
		return errors.New("-o must be one of text, json, yaml, markdown")
	}
	if len(args) > 1 {
		return errors.New("plan takes at most one node")
	}
	if len(args) == 0 {
		return report.WritePlan(st.out, st.world.plan(), report.Style{Format: format, Cluster: true})
	}
	if err := checkNode(st.world.base.Config, args[0]); err != nil {
		return err
	}
	p, err := st.world.planOf(args[0])
	if err != nil {
		return err
	}
	return report.WritePlan(st.out, p, report.Style{Format: format})
}

func checkPlaced(st *session, in input) (checkResult, error) {
	var want []ident.DiskRef
	for _, text := range in.args[1:] {
		ref, err := parseDisk(st.world.base.Config, text)
		if err != nil {
			return checkResult{}, err
		}
		want = append(want, ref)
	}
	slices.SortFunc(want, ident.DiskRef.Compare)
	want = slices.Compact(want)
	is := readyDisks(st.world, in.image)
	if slices.Equal(is, want) {
		return checkResult{ok: true, got: fmt.Sprintf("%s is ready on exactly %s", in.args[0], texts(is))}, nil
	}
	return checkResult{got: fmt.Sprintf("%s is ready on %s; expected: %s", in.args[0], cmp.Or(texts(is), "no disk"), texts(want)), image: in.image}, nil
}

// texts joins values for a message.
func texts[T any](values []T) string { return plan.JoinMax(values, ", ", len(values)) }

func checkCopies(st *session, in input) (checkResult, error) {
	number, exactly := strings.CutPrefix(in.args[1], "=")
	want, err := strconv.Atoi(number)
	if err != nil || want < 0 {
		return checkResult{}, fmt.Errorf("%q is not a number of copies: write N or =N", in.args[1])
	}
	tags := in.options["on"]
	if err := checkTags(st.world.base.Config, tags); err != nil {
		return checkResult{}, err
	}
	on := slices.DeleteFunc(readyDisks(st.world, in.image), func(ref ident.DiskRef) bool {
		return slices.ContainsFunc(tags, func(tag string) bool { return !hasTag(st.world.base.Config, ref, tag) })
	})
	where := ""
	if len(tags) > 0 {
		where = " on " + strings.Join(tags, " and ")
	}
	least := "at least "
	if exactly {
		least = ""
	}
	v := checkResult{ok: len(on) == want || !exactly && len(on) > want, image: in.image}
	v.got = fmt.Sprintf("%s has %d ready%s (%s)", in.args[0], len(on), where, cmp.Or(texts(on), "no disk"))
	if !v.ok {
		v.got += fmt.Sprintf("; expected: %s%d", least, want)
	}
	return v, nil
}

// checkTags returns an error for a tag that no node and no disk has as a tag or name: it is a typo.
func checkTags(c schema.Config, tags []string) error {
	known := map[string]bool{}
	for name, node := range c.Nodes {
		known[name] = true
		for _, tag := range node.Tags {
			known[tag] = true
		}
		for diskName, d := range node.Disks {
			known[ident.DiskRef{Node: name, Disk: diskName}.String()] = true
			for _, tag := range d.Tags {
				known[tag] = true
			}
		}
	}
	for _, tag := range tags {
		if !known[tag] {
			return fmt.Errorf("on=%s: no node or disk has this name or tag", tag)
		}
	}
	return nil
}

// checkPlanned checks whether the plan has an action of the image with the operation op and a matching reason.
func checkPlanned(st *session, in input, op model.Op) (checkResult, error) {
	reason := regexp.MustCompile("")
	if len(in.args) > 1 {
		var err error
		if reason, err = regexp.Compile(in.args[1]); err != nil {
			return checkResult{}, err
		}
	}
	var match, other []string
	for _, a := range st.world.plan().Actions {
		if !isAbout(a, in.args[0]) {
			continue
		}
		line := fmt.Sprintf("%s %s: %s", a.Op, a.CopyRef().Disk, a.Text)
		if a.Disk == "" {
			line = fmt.Sprintf("%s: %s", a.Op, a.Text)
		}
		if a.Op == op && reason.MatchString(a.Text) {
			match = append(match, line)
		} else {
			other = append(other, line)
		}
	}
	if len(match) > 0 {
		return checkResult{ok: true, got: strings.Join(match, "\n    ")}, nil
	}
	text := fmt.Sprintf("the plan has no actions for %s", in.args[0])
	if len(other) > 0 {
		text = fmt.Sprintf("the plan for %s has only:\n    %s", in.args[0], strings.Join(other, "\n    "))
	}
	return checkResult{got: text}, nil
}

// isAbout reports whether an action is for an image, by its name or by <name>-<uuid>.
func isAbout(a plan.Action, image string) bool {
	return a.Image == image || a.CopyRef().ID.String() == image
}

func checkNever(st *session, in input) (checkResult, error) {
	op := model.Op(in.args[0])
	if !slices.Contains(model.Ops, op) {
		return checkResult{}, fmt.Errorf("unknown action %q: the actions are %s", in.args[0], texts(model.Ops))
	}
	if len(in.args) > 1 && !slices.ContainsFunc(st.world.history, func(d executed) bool { return isAbout(d.Action, in.args[1]) }) {
		if _, err := st.world.findImage(in.args[1]); err != nil {
			return checkResult{}, err
		}
	}
	var found []string
	for _, d := range st.history() {
		about := len(in.args) < 2 || isAbout(d.Action, in.args[1])
		if d.Op == op && about {
			found = append(found, fmt.Sprintf("+%v %s %s %s: %s", d.at.Sub(st.world.startedAt), d.Op, d.Image, d.CopyRef().Disk, d.Text))
		}
	}
	if len(found) == 0 {
		return checkResult{ok: true, got: strings.Join(in.args, " ") + " was not executed"}, nil
	}
	return checkResult{got: strings.Join(in.args, " ") + " was executed:\n    " + strings.Join(found, "\n    ")}, nil
}

func converge(st *session, in input) error {
	limit, err := option(in, "for", load.ParseInterval, 0)
	if err != nil {
		return err
	}
	history, err := st.world.converge(st.ctx, limit)
	failures := 0
	for _, line := range report.Align(historyRows(st.world, history)) {
		fmt.Fprintln(st.out, line)
	}
	for _, e := range history {
		if e.err != nil {
			failures++
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(st.out, "%s, %d failed. %s\n", report.Count(len(history), "action"), failures, report.PlanSummary(st.world.plan()))
	return nil
}

// historyRows returns a row for each action: time, action, image, disk and result.
func historyRows(w *world, history []executed) [][]string {
	var rows [][]string
	for _, e := range history {
		note := text.Line(e.Text)
		if e.From != (ident.CopyRef{}) {
			note += "; from " + e.From.String()
		}
		if e.err != nil {
			note = "failed: " + text.Line(e.err.Error())
		}
		rows = append(rows, []string{fmt.Sprintf("+%v", e.at.Sub(w.startedAt)), string(e.Op), e.Image, e.CopyRef().Disk.String(), note})
	}
	return rows
}
