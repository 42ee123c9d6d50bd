package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func newImageCleanup() *cobra.Command {
	var c caller
	var on, uuid string
	cmd := &cobra.Command{
		Use:   "cleanup NAME --on NODE/DISK [--url URL] [flags]",
		Short: "Remove a copy now that would be removed later",
		Long: `Asks a daemon to remove the copy of an image on one of its disks without waiting for
the clean-up interval. All other rules hold: a copy goes when it is wanted no more,
nothing uses it, and enough others are ready. It is gone soon after.

NAME stands for the declared image; --uuid names an older generation, or one of an
image that is not declared any more.

Exit status: 0 when the copy goes or is gone, 1 when it is kept, with the reason.`,
		Example: `  backing-image-manager backing-image cleanup parrot --on node1/disk1
  backing-image-manager backing-image cleanup parrot --on node2/disk1 --uuid 6846a0b2 --url http://node2:8000 --token-file token`,
		Args:              exactly("NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.add(cmd)
	cmd.Flags().StringVar(&on, "on", "", "the copy on `NODE/DISK`")
	cmd.Flags().StringVar(&uuid, "uuid", "", "the generation with this `UUID`, if not the declared one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if on == "" {
			return errors.New("--on is missing: name the copy by --on NODE/DISK")
		}
		if _, err := parseRef(on); err != nil {
			return fmt.Errorf("--on is %q: %w", on, err)
		}
		said, err := c.cleanup(cmd.Context(), args[0], uuid, on)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s on %s: %s\n", args[0], on, oneLine(said))
		return err
	}
	return cmd
}

// cleanup asks the daemon to remove a copy, and returns what it says to that.
func (c caller) cleanup(ctx context.Context, image, uuid, on string) (string, error) {
	query := url.Values{"disk": {on}}
	if uuid != "" {
		query.Set("uuid", uuid)
	}
	var said cleanedUp
	err := c.ask(ctx, http.MethodPost, "/v1/images/"+url.PathEscape(image)+"/cleanup?"+query.Encode(), &said)
	return said.Message, err
}

// cleanedUp is the answer for a copy that goes or is gone.
type cleanedUp struct {
	Message string `json:"message"`
}

func parseRef(text string) (schema.DiskRef, error) {
	node, name, ok := strings.Cut(text, "/")
	if !ok || node == "" || name == "" || strings.Contains(name, "/") {
		return schema.DiskRef{}, errors.New("write NODE/DISK")
	}
	return schema.DiskRef{Node: node, Disk: name}, nil
}

// cleanUp answers what happens with a copy that somebody wants to be removed.
func (s server) cleanUp(w http.ResponseWriter, r *http.Request) {
	name, uuid := r.PathValue("name"), r.URL.Query().Get("uuid")
	on, err := parseRef(r.URL.Query().Get("disk"))
	if err != nil {
		answerError(w, http.StatusBadRequest, "disk: "+err.Error())
		return
	}
	if err := errors.Join(disk.CheckName(name), checkGiven(uuid)); err != nil {
		answerError(w, http.StatusBadRequest, oneLine(err.Error()))
		return
	}
	v := s.loop.View()
	if v == nil {
		answerError(w, http.StatusServiceUnavailable, "the disks were not looked at yet: ask again")
		return
	}
	if no := cannotClean(v, on); no != nil {
		answerError(w, no.status, no.why)
		return
	}
	action, err := s.cleanup(r.Context(), name, uuid, on)
	switch {
	case errors.Is(err, reconcile.ErrNotDeclared):
		answerError(w, http.StatusNotFound, err.Error()+": a copy that is left of it is named with --uuid")
	case errors.Is(err, reconcile.ErrNotReady) && uuid != "":
		answer(w, http.StatusOK, cleanedUp{"there is no copy with the uuid " + uuid})
	case errors.Is(err, reconcile.ErrNotReady):
		answer(w, http.StatusOK, cleanedUp{"there is no copy"})
	case err != nil:
		answerError(w, http.StatusServiceUnavailable, err.Error())
	case action.Kind == reconcile.Cleanup || action.Kind == reconcile.Evict:
		answer(w, http.StatusAccepted, cleanedUp{"goes: " + action.Reason})
	default:
		answerError(w, http.StatusConflict, "kept: "+cmp.Or(action.Reason, "it is wanted"))
	}
}

func checkGiven(uuid string) error {
	if uuid == "" {
		return nil
	}
	return disk.CheckUUID(uuid)
}

// cannotClean says why nothing can be said of the copies on a disk here.
func cannotClean(v *reconcile.View, on schema.DiskRef) *refusal {
	if v.Desired.Node != on.Node {
		return &refusal{http.StatusConflict, elsewhere(v.Desired.Config, v.Desired.Node, on)}
	}
	seen, known := v.Observed.Disks[on]
	switch {
	case !known:
		return &refusal{http.StatusNotFound, fmt.Sprintf("disk %s: node %s has no disk of that name: it has %s", on, on.Node, ownDisks(v))}
	case seen.Problem != "":
		return &refusal{http.StatusConflict, fmt.Sprintf("disk %s: %s", on, oneLine(seen.Problem))}
	}
	return nil
}

func ownDisks(v *reconcile.View) string {
	var names []string
	for ref := range v.Observed.Disks {
		if ref.Node == v.Desired.Node {
			names = append(names, ref.Disk)
		}
	}
	slices.Sort(names)
	return cmp.Or(strings.Join(names, ", "), "none")
}

// elsewhere says whom to ask about a disk that is not this node's.
func elsewhere(c schema.Config, node string, on schema.DiskRef) string {
	other, declared := c.Nodes[on.Node]
	switch {
	case !declared:
		return fmt.Sprintf("disk %s: this is node %s, and node %s is not declared", on, node, on.Node)
	case other.Address == "":
		return fmt.Sprintf("disk %s: this is node %s: ask the daemon of node %s, whose address is not declared", on, node, on.Node)
	}
	return fmt.Sprintf("disk %s: this is node %s: ask the daemon of node %s with --url %s", on, node, on.Node, withoutSecrets(other.Address))
}
