// Loads a project as `docker compose --env-file FILE --file FILE --profile '*' config --format json` does.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[2:],
		cli.WithOsEnv, cli.WithEnvFiles(os.Args[1]), cli.WithDotEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		log.Fatal(err)
	}
	project, err := cli.ProjectFromOptions(context.Background(), options)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(project); err != nil {
		log.Fatal(err)
	}
}
